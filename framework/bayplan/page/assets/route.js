// The place on the page, kept in the URL: "#/view/subject?key=value".

/** Read the place from a hash. */
export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [view = "", ...rest] = path.split("/");
  const decode = (text) => {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  };
  return { view: decode(view), subject: decode(rest.join("/")), query: new URLSearchParams(query) };
}

/** Write a place as a hash. */
export function place(view, subject = "", query = {}) {
  const pairs = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(pairs).toString();
  const tail = subject ? `/${encodeURIComponent(subject)}` : "";
  return `#/${view}${tail}${text ? `?${text}` : ""}`;
}

/** The place with some of its query changed; an empty value removes it. */
export function changed(route, changes) {
  return place(route.view, route.subject, { ...Object.fromEntries(route.query), ...changes });
}
