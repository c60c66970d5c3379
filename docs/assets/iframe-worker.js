// A page that was opened as a file may not start a Worker, which search runs in. There, run the script in a frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const scope = frame.contentWindow;
      this.ready = new Promise((resolve) => {
        // Inside a worker, postMessage answers its owner.
        scope.postMessage = (data) => this.deliver(data);
        scope.importScripts = (...urls) => Promise.all(urls.map((each) => this.load(scope, each)));
        this.load(scope, url).then(() => resolve(scope));
      });
      this.frame = frame;
    }

    load(scope, url) {
      return new Promise((resolve, reject) => {
        const script = scope.document.createElement("script");
        script.src = new URL(url, location.href).href;
        script.onload = resolve;
        script.onerror = reject;
        scope.document.body.append(script);
      });
    }

    deliver(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    postMessage(data) {
      this.ready.then((scope) => scope.dispatchEvent(new scope.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
