/* Search in pages that are opened from a folder, where browsers refuse workers: the worker's script runs in a frame.
   `parent.IFrameWorker` is how the script finds out (see mkdocs-material's offline plugin, which loads a shim of this
   kind from another host). */
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      this.loaded = new Promise((resolve) => script.addEventListener("load", () => resolve(inside)));
      script.src = url;
      inside.document.body.append(script);
    }

    async postMessage(data) {
      (await this.loaded).dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
