import { join } from 'node:path';
import { type Place, root } from './cli-process.js';
import { Speaker } from './member-process.js';

const program = join(root, 'test', 'integration', 'programs', 'cluster-member.mjs');

/** What a member heard of one publisher. */
export interface Heard {
  readonly count: number;
  readonly last: number;
  readonly gaps: number;
  readonly disorder: number;
}

/** A member in a process of its own; see test/integration/programs/cluster-member.mjs. */
export class Member extends Speaker {
  constructor(place: Place, name: string, ...words: string[]) {
    super(place.node(program, name, ...words), name);
  }

  /** Waits until it has said this, of that peer if one is given. */
  until(type: string, peer?: string, times = 1): Promise<void> {
    return this.running.until(`${times} ${type} ${peer ?? ''} of ${this.name}`, () => {
      return this.of(type).filter((line) => peer === undefined || line.peer === peer).length >= times;
    });
  }

  tell(line: string): void {
    this.running.write(`${line}\n`);
  }

  /** What it has heard, asked anew until it is as wanted. */
  async heard(
    what: string,
    wanted: (heard: Record<string, Heard>) => boolean,
  ): Promise<Record<string, Heard>> {
    const deadline = Date.now() + 60_000;
    for (;;) {
      const before = this.of('heard').length;
      this.tell('heard');
      await this.until('heard', undefined, before + 1);
      const heard = this.of('heard').at(-1)!.heard as Record<string, Heard>;
      if (wanted(heard)) return heard;
      if (Date.now() > deadline)
        throw new Error(`${this.name} did not hear ${what}: ${JSON.stringify(heard)}`);
    }
  }

  async leave(): Promise<void> {
    this.tell('leave');
    await this.running.finish();
  }
}
