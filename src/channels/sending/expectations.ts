import type { PeerEnd, RowWaiter } from '../peer.js';

/** Why a destination is over: the peer, its unsubscribing, or this member's end. */
export type DestinationEnd = PeerEnd | 'unsubscribed' | 'closed';

/** Told what becomes of one published message at one destination. */
export interface Ticket extends RowWaiter {
  dropped(): void;
}

/** Makes the ticket of one message, once it is known how many destinations it has. */
export type TicketMaker = (destinations: number) => Ticket;

/** Waits until everything up to a sequence is delivered at a destination `D`, or that ends. */
export interface DeliveryWaiter<D> {
  delivered(destination: D): void;
  ended(destination: D, why: DestinationEnd): void;
}

/** Who waits for messages at one destination: publish() for those that are queued, flush() and drain() for delivery. */
export class Expectations<D> {
  readonly #tickets = new Map<number, Ticket>();
  #waiters: { sequence: number; waiter: DeliveryWaiter<D> }[] = [];

  constructor(private readonly destination: D) {}

  /** Whether queued messages are waited for. */
  get queued(): boolean {
    return this.#tickets.size > 0;
  }

  /** Whether delivery is waited for. */
  get delivery(): boolean {
    return this.#waiters.length > 0;
  }

  /** A message that is queued. */
  queue(sequence: number, ticket: Ticket): void {
    this.#tickets.set(sequence, ticket);
  }

  /** A queued message was dropped. */
  dropped(sequence: number): void {
    const ticket = this.#tickets.get(sequence);
    if (ticket === undefined) return;
    this.#tickets.delete(sequence);
    ticket.dropped();
  }

  /** The same for all within. */
  droppedWithin(from: number, to: number): void {
    for (const sequence of [...this.#tickets.keys()])
      if (sequence >= from && sequence <= to) this.dropped(sequence);
  }

  /** Queued messages up to that sequence are with the transport. */
  sent(sequence: number, handed: (ticket: Ticket) => void): void {
    for (const [at, ticket] of this.#tickets) {
      if (at > sequence) return;
      this.#tickets.delete(at);
      handed(ticket);
    }
  }

  /** Waits for the delivery of everything up to that sequence. */
  add(sequence: number, waiter: DeliveryWaiter<D>): void {
    this.#waiters.push({ sequence, waiter });
  }

  /** Forgets a waiter that gave up. */
  forget(waiter: DeliveryWaiter<D>): void {
    this.#waiters = this.#waiters.filter((one) => one.waiter !== waiter);
  }

  /** Everything up to that sequence is delivered. */
  delivered(sequence: number): void {
    const due = this.#waiters.filter((one) => one.sequence <= sequence);
    if (due.length === 0) return;
    this.#waiters = this.#waiters.filter((one) => one.sequence > sequence);
    for (const { waiter } of due) waiter.delivered(this.destination);
  }

  /** Nothing more is sent. What was queued had not been sent; on a multicast channel it may have been. */
  end(why: DestinationEnd, ambiguous: boolean): void {
    const tickets = [...this.#tickets.values()];
    this.#tickets.clear();
    for (const ticket of tickets) ticket.lost(why === 'unsubscribed' ? 'left' : why, ambiguous);
    const waiters = this.#waiters;
    this.#waiters = [];
    for (const { waiter } of waiters) waiter.ended(this.destination, why);
  }
}
