// Browsers start no worker for a page that is opened from disk. A hidden frame then runs the worker of the search.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.body.appendChild(document.createElement("iframe"));
      frame.hidden = true;
      this.frame = frame;
      this.inside = frame.contentWindow;
      const load = (address) => new Promise((done, failed) => {
        const script = this.inside.document.createElement("script");
        script.src = new URL(address, location.href).href;
        script.onload = done;
        script.onerror = failed;
        this.inside.document.body.append(script);
      });
      this.inside.importScripts = (...addresses) =>
        addresses.reduce((before, address) => before.then(() => load(address)), Promise.resolve());
      this.inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data: structuredClone(data) });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      this.loaded = load(url);
    }
    postMessage(data) {
      const event = new this.inside.MessageEvent("message", { data: structuredClone(data) });
      this.loaded.then(() => this.inside.dispatchEvent(event));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
