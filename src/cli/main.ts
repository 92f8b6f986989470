#!/usr/bin/env node
import { run } from './program.js';

// Standard input may still be open (a `tail -f` that goes on), so the end is said rather than waited for. Everything is
// written and every member has left by then.
void run(process.argv.slice(2)).then((code) => process.exit(code));
