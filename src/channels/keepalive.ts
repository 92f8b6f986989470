/** What the keepalive needs of its member. */
export interface KeepaliveHost {
  readonly closed: boolean;
  readonly transport: { readonly unsent: boolean };
  /** Begins or ceases to hold the event loop. */
  holdLoop(on: boolean): void;
  /** An end of turn follows. */
  schedule(): void;
}

/** Whether this member keeps the event loop running: for subscribers and promises, and while something is not on its way yet. */
export class Keepalive {
  /** Subscribers and promises. */
  #holds = 0;
  /** Destinations and groups that hold something back. */
  #queueing = 0;
  #allowed = true;
  #holding = false;

  constructor(private readonly host: KeepaliveHost) {}

  /** A subscriber or a promise holds the event loop until the returned function is called. */
  hold(): () => void {
    let held = true;
    this.#holds++;
    this.update();
    return () => {
      if (!held) return;
      held = false;
      this.#holds--;
      this.update();
    };
  }

  /** Whether this member may hold the event loop at all. */
  ref(on: boolean): void {
    this.#allowed = on;
    this.update();
  }

  /** Something is held back, or no more; the end of the turn looks what follows from it. */
  queues(on: boolean): void {
    this.#queueing += on ? 1 : -1;
    this.host.schedule();
  }

  update(): void {
    const { closed, transport } = this.host;
    const busy = this.#holds > 0 || this.#queueing > 0 || transport.unsent;
    const holding = this.#allowed && !closed && busy;
    if (holding === this.#holding) return;
    this.#holding = holding;
    this.host.holdLoop(holding);
  }
}
