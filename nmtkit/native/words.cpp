// The Python module nmtkit._words (nmtkit/_words.pyi).
#include "python.h"
#include "word_cache.h"

namespace {

using namespace nmtkit;

PyObject* cache(PyObject*, PyObject* args) {
  const char* line_end;
  Py_ssize_t bytes, max_bytes;
  if (!PyArg_ParseTuple(args, "y#n", &line_end, &bytes, &max_bytes)) return nullptr;
  std::unique_ptr<WordCache> made;
  const bool done = catch_exceptions([&] {
    made = std::make_unique<WordCache>(std::string(line_end, bytes), static_cast<size_t>(max_bytes));
  });
  return done ? to_capsule(std::move(made)) : nullptr;
}

PyObject* find_new(PyObject*, PyObject* args) {
  WordCache* cache;
  const char* text;
  Py_ssize_t bytes;
  if (!PyArg_ParseTuple(args, "O&y#", read_capsule<WordCache>, &cache, &text, &bytes)) return nullptr;
  std::vector<std::string_view> words;
  if (!catch_exceptions([&] { words = cache->find_new({text, static_cast<size_t>(bytes)}); })) return nullptr;
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(words.size()));
  for (size_t i = 0; list && i < words.size(); ++i) {
    PyObject* word = PyUnicode_DecodeUTF8(words[i].data(), static_cast<Py_ssize_t>(words[i].size()), nullptr);
    if (!word) Py_CLEAR(list);
    else PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), word);
  }
  return list;
}

// Whether the lengths are those of the new words, and the ids as many as they say.
bool fits(const WordCache& cache, size_t id_bytes, const int32_t* lengths, size_t words) {
  size_t ids = 0;
  for (size_t i = 0; i < words; ++i) {
    if (lengths[i] < 0) return false;
    ids += static_cast<size_t>(lengths[i]);
  }
  return words == cache.new_words() && ids * cache.id_bytes() == id_bytes;
}

PyObject* encode(PyObject*, PyObject* args) {
  WordCache* cache;
  const char *ids, *lengths;
  Py_ssize_t id_bytes, length_bytes;
  if (!PyArg_ParseTuple(args, "O&y#y#", read_capsule<WordCache>, &cache, &ids, &id_bytes, &lengths, &length_bytes))
    return nullptr;
  PyObject* encoded = nullptr;
  const bool done = catch_exceptions([&] {
    std::vector<int32_t> counts(static_cast<size_t>(length_bytes) / sizeof(int32_t));
    if (!counts.empty()) std::memcpy(counts.data(), lengths, counts.size() * sizeof(int32_t));
    if (!fits(*cache, static_cast<size_t>(id_bytes), counts.data(), counts.size())) {
      PyErr_SetString(PyExc_ValueError, "the ids do not fit the new words");
      return;
    }
    cache->add(ids, counts.data());
    encoded = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(cache->encoded_bytes()));
    if (encoded) cache->write(PyBytes_AS_STRING(encoded));
  });
  return done ? encoded : nullptr;
}

PyMethodDef kMethods[] = {
    {"cache", cache, METH_VARARGS, nullptr},
    {"find_new", find_new, METH_VARARGS, nullptr},
    {"encode", encode, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef kModule = {
    PyModuleDef_HEAD_INIT, "_words", nullptr, -1, kMethods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__words() { return nmtkit::make_module(&kModule); }
