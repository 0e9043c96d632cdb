// Where the rows come from: the document itself, or the server that sent it.

/** Read the rows that are inside the document; null if there are none. */
export async function inside() {
  const element = document.getElementById("data");
  if (!element) return null;
  const packed = Uint8Array.from(atob(element.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

/** Get a path of the server as JSON, with another token than the page's if one is given. */
export async function get(path, options = {}, own = "") {
  const headers = { ...token(), ...(own ? { Authorization: `Bearer ${own}` } : {}), ...(options.body ? { "Content-Type": "application/json" } : {}) };
  const answer = await fetch(path, { credentials: "same-origin", ...options, headers });
  if (!answer.ok) throw new Error((await answer.text()).slice(0, 300) || `${path}: ${answer.status}`);
  return answer.json();
}

/** Beyond loopback, the server wants a bearer token; the page keeps it only while it is open. */
let bearer = "";

export function useToken(text) {
  bearer = text.trim();
}

function token() {
  return bearer ? { Authorization: `Bearer ${bearer}` } : {};
}

/**
 * Follow the server's events; `path()` says after which version. `change(patch)` is called for each; `state(text)` says whether it is
 * connected. EventSource cannot send a token, so the stream is read with fetch.
 */
export async function follow(path, change, state) {
  for (let wait = 1000; ; wait = Math.min(10_000, wait * 2)) {
    try {
      const answer = await fetch(path(), { headers: { Accept: "text/event-stream", ...token() }, cache: "no-store" });
      if (!answer.ok) throw new Error(`${answer.status}`);
      state("live");
      wait = 1000;
      await read(answer.body, change);
    } catch (error) {
      if (error instanceof Gone) {
        location.reload();
        return;
      }
    }
    state("not connected");
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

class Gone extends Error {}

async function read(body, change) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const lines = text.slice(0, end).split("\n");
      text = text.slice(end + 2);
      const name = lines.find((line) => line.startsWith("event: "));
      if (name === "event: again") throw new Gone();
      const data = lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data) change(JSON.parse(data));
    }
  }
}
