/** The upstream groups of the demo. No imports: its options are read before anything is installed. */

export const PORT = 5001;

/** Each feed is a group, a rule and a channel. */
export const FEEDS = [
  {
    name: 'currencies',
    symbols: ['EURUSD', 'USDJPY', 'GBPUSD', 'USDCHF', 'AUDUSD', 'USDCAD', 'NZDUSD', 'EURGBP'],
  },
  { name: 'metals', symbols: ['GOLD', 'SILVER', 'PLATINUM', 'COPPER', 'ZINC', 'NICKEL'] },
  { name: 'energy', symbols: ['BRENT', 'WTI', 'GAS', 'POWER'] },
];

/**
 * The group of a feed.
 * @param {number} net third byte of the address, so that two demos on one loopback interface don't hear each other
 * @param {number} index of the feed
 */
export const groupOf = (net, index) => `239.255.${net}.${index + 1}`;

/**
 * A rules file for all feeds.
 * @param {number} net
 * @param {string} networkInterface that they come in through
 */
export const rulesText = (net, networkInterface) =>
  `rules:\n${FEEDS.map(
    ({ name }, i) =>
      `  - name: ${name}\n` +
      `    match: { dst: ${groupOf(net, i)}, protocol: udp, port: ${PORT}, interface: ${networkInterface} }\n` +
      `    to: feed.${name}\n`,
  ).join('')}`;
