/** Figures as text. */

export const median = (list) => {
  const sorted = [...list].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
};

/** Three digits, without exponents. */
export const digits = (value) =>
  value >= 100 ? value.toFixed(0) : value.toFixed(value >= 10 || value === 0 ? 1 : 2);
export const perSecond = (rate) =>
  rate >= 1e6 ? `${(rate / 1e6).toFixed(2)} M/s` : `${(rate / 1e3).toFixed(rate < 1e4 ? 1 : 0)} k/s`;
export const gigabytes = (rate) => `${(rate / 1e9).toFixed(rate < 1e9 ? 2 : 1)} GB/s`;
export const micros = (us) => (us >= 10_000 ? `${(us / 1000).toFixed(0)} ms` : `${us.toFixed(1)} us`);
export const percent = (value) => `${value.toFixed(2)} %`;
export const mebibytes = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;
export const sized = (bytes) => {
  const unit = ['B', 'KiB', 'MiB', 'GiB'];
  const power = Math.floor(Math.log2(bytes) / 10);
  return `${bytes / 1024 ** power} ${unit[power]}`;
};
