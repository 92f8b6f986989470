#pragma once

#include <cstdint>
#include <string>

#include "soft/fabric.h"

namespace millrace::soft {

/**
 * Cleans up after a process that is certainly dead (R5) or is leaving: its SRQ and QP numbers, its
 * holds on target QPs, its open XRC domains, its files, and last its slot. Every step is a CAS from
 * a value that names the dead incarnation, or the removal of a name that is never used again, so
 * any number of survivors may run it at the same time, be killed or stopped inside it, and go on at
 * any later time (I7).
 *
 * What the dead process had taken from the SRQs of others, and the rings into their CQs, are not
 * touched: the owners of those reap them (R2). `bytes` grows by what was given back.
 *
 * `leaving` is for a process that ends with threads of it still running: its slot stays REAPING
 * until its presence lock is free, so that nobody returns what such a thread may still have taken
 * (R5).
 */
void reap_process(Root& root, uint32_t slot, uint32_t incarnation, uint64_t* bytes = nullptr,
                  bool leaving = false);

/**
 * Reaps every slot whose presence lock is free and removes files of incarnations that are not in
 * the table. The caller holds the folder's lock. Returns how many processes were reaped.
 */
uint32_t reap_all(Root& root, uint64_t* bytes = nullptr);

/** Whether anybody is present who is not about to end, not counting the slot `except` (or -1). */
bool anybody_present(Root& root, int except = -1);

/** Removes all files in the folder, the one named `last` at the end (a kill leaves it for the next
 * who cleans). */
void remove_files(int folder, const std::string& last, uint64_t* bytes = nullptr);

/**
 * Removes all files of the fabric, its folder and, if it was the last one, the parent. The caller
 * holds the folder's lock and has made sure that nobody is present.
 */
void remove_fabric(const FabricPath& path, int folder, uint64_t* bytes = nullptr);

/**
 * The closing step of the target QP's record with this index, whatever it holds by now: without
 * holders LIVE -> CLOSING, a second look at the holders, then FREE; with one in the second look
 * back to LIVE and again. Whoever took a hold away runs it, also an opener that found another
 * number and took its own hold back. CLOSING names who is closing (Root::incarnation), so that a
 * stale CLOSING -> FREE can not succeed and a dead closer's can be taken over: pass its incarnation
 * as `dead`, or 0.
 */
void closing_step(Root& root, uint32_t index, uint32_t dead = 0);

}  // namespace millrace::soft
