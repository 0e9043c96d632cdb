// What happened to the queues up to the time shown: shares, waits and evictions.

/** Return figures by queue, its descendants included: {share, waits, waiting, evictions}; waits are seconds, in order. */
export function queueFigures(model) {
  const queues = model.data.queues || [];
  const parents = new Map(queues.map((one) => [`${one.system}/${one.name}`, one.parent ? `${one.system}/${one.parent}` : ""]));
  const found = new Map([...parents.keys()].map((key) => [key, { share: meanShare(model, key), waits: [], started: 0, waiting: 0, evictions: 0 }]));
  const upFrom = (queue, act) => {
    const seen = new Set();
    for (let key = queue; found.has(key) && !seen.has(key); key = parents.get(key)) {
      seen.add(key);
      act(found.get(key));
    }
  };
  for (const [at, queue, seconds] of model.waits) {
    if (at > model.at) continue;
    // A workload of Kueue that was evicted waited for nothing.
    upFrom(queue, seconds === null ? (one) => { one.evictions += 1; } : (one) => { one.waits.push(seconds); one.started += 1; });
  }
  for (const job of model.jobs()) {
    if (job.pending && !job.bound) upFrom(job.unit.queue, (one) => { one.waits.push(model.at - job.since); one.waiting += 1; });
  }
  for (const [at, kind, pod] of model.events) {
    if (kind === "Evicted" && at <= model.at && model.pods.has(pod)) upFrom(model.queueOf(model.pods.get(pod).unit), (one) => { one.evictions += 1; });
  }
  for (const one of found.values()) one.waits.sort((a, b) => a - b);
  return found;
}

/** The queues that ever had a share of the cluster, those that had the largest first. */
export function largestQueues(model) {
  const most = new Map();
  for (const one of model.samples) {
    for (const [queue, share] of Object.entries(one.queues)) most.set(queue, Math.max(most.get(queue) || 0, share));
  }
  return [...most].filter(([, share]) => share > 0).sort((a, b) => b[1] - a[1]).map(([queue]) => queue);
}

/** The mean of a queue's share of the cluster, from the beginning to the time shown. */
function meanShare(model, queue) {
  let sum = 0;
  model.samples.forEach((one, index) => {
    const next = index + 1 < model.samples.length ? model.samples[index + 1].at : model.at;
    sum += (one.queues[queue] || 0) * Math.max(0, Math.min(next, model.at) - one.at);
  });
  const span = model.at - model.begin;
  return span > 0 ? sum / span : 0;
}

/** A percentile of numbers in order, between the two nearest; null of none. */
export function percentile(numbers, part) {
  if (!numbers.length) return null;
  const at = part * (numbers.length - 1);
  const low = Math.floor(at);
  const high = Math.min(low + 1, numbers.length - 1);
  return numbers[low] + (at - low) * (numbers[high] - numbers[low]);
}
