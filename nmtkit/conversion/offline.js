// Answers requests of the page from the network, or from copies of earlier answers without one.
self.addEventListener("install", event => {
  self.skipWaiting();
  event.waitUntil(caches.open("page").then(cache => cache.add("./")));
});
self.addEventListener("activate", event => event.waitUntil(self.clients.claim()));
self.addEventListener("fetch", event => event.respondWith(answer(event.request)));

async function answer(request) {
  const cache = await caches.open("page");
  try {
    const response = await fetch(request);
    if (response.ok) await cache.put(request, response.clone());
    return response;
  } catch (error) {
    return await cache.match(request, {ignoreSearch: true}) ?? Promise.reject(error);
  }
}
