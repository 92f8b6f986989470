/** `npm run frames`: prints its plan, sets up what is missing, then runs the example of frames. */
import { framesOptions, HELP } from '../examples/frames/options.mjs';
import { runExample } from './example.mjs';

await runExample({
  help: HELP,
  check: framesOptions,
  program: 'examples/frames/run.mjs',
  does: 'a publisher of frames, a subscriber for histograms, one for thumbnails',
});
