#include "verbs/system.h"

#include <dlfcn.h>
#include <string.h>

#include <cstddef>
#include <iterator>

#include "base/status.h"
#include "soft/provider.h"
#include "verbs/dropin_marker.h"

namespace millrace::verbs {
namespace {

/** A call of the table, its exported name, and the version that has the signature we use. */
struct Entry {
  size_t offset;
  const char* symbol;
  const char* version;
  bool needed;
};

#define MILLRACE_NEEDED(member, version) \
  Entry { offsetof(Provider, member), "ibv_" #member, version, true }
#define MILLRACE_OPTIONAL(member, symbol, version) \
  Entry { offsetof(Provider, member), symbol, version, false }

constexpr Entry kEntries[] = {
    MILLRACE_NEEDED(get_device_list, "IBVERBS_1.1"),
    MILLRACE_NEEDED(free_device_list, "IBVERBS_1.1"),
    MILLRACE_NEEDED(get_device_name, "IBVERBS_1.1"),
    MILLRACE_NEEDED(get_device_guid, "IBVERBS_1.1"),
    MILLRACE_NEEDED(get_device_index, "IBVERBS_1.9"),
    MILLRACE_NEEDED(open_device, "IBVERBS_1.1"),
    MILLRACE_NEEDED(close_device, "IBVERBS_1.1"),
    MILLRACE_NEEDED(query_device, "IBVERBS_1.1"),
    MILLRACE_NEEDED(query_port, "IBVERBS_1.1"),
    MILLRACE_NEEDED(query_gid, "IBVERBS_1.1"),
    MILLRACE_NEEDED(query_pkey, "IBVERBS_1.1"),
    MILLRACE_NEEDED(get_async_event, "IBVERBS_1.1"),
    MILLRACE_NEEDED(ack_async_event, "IBVERBS_1.1"),
    MILLRACE_NEEDED(alloc_pd, "IBVERBS_1.1"),
    MILLRACE_NEEDED(dealloc_pd, "IBVERBS_1.1"),
    MILLRACE_NEEDED(reg_mr, "IBVERBS_1.1"),
    MILLRACE_NEEDED(reg_mr_iova, "IBVERBS_1.7"),
    MILLRACE_NEEDED(reg_mr_iova2, "IBVERBS_1.8"),
    MILLRACE_NEEDED(dereg_mr, "IBVERBS_1.1"),
    MILLRACE_NEEDED(create_comp_channel, "IBVERBS_1.0"),
    MILLRACE_NEEDED(destroy_comp_channel, "IBVERBS_1.0"),
    MILLRACE_NEEDED(create_cq, "IBVERBS_1.1"),
    MILLRACE_NEEDED(resize_cq, "IBVERBS_1.1"),
    MILLRACE_NEEDED(destroy_cq, "IBVERBS_1.1"),
    MILLRACE_NEEDED(get_cq_event, "IBVERBS_1.1"),
    MILLRACE_NEEDED(ack_cq_events, "IBVERBS_1.1"),
    MILLRACE_NEEDED(create_srq, "IBVERBS_1.1"),
    MILLRACE_NEEDED(modify_srq, "IBVERBS_1.1"),
    MILLRACE_NEEDED(query_srq, "IBVERBS_1.1"),
    MILLRACE_NEEDED(destroy_srq, "IBVERBS_1.1"),
    MILLRACE_NEEDED(create_qp, "IBVERBS_1.1"),
    MILLRACE_NEEDED(modify_qp, "IBVERBS_1.1"),
    MILLRACE_NEEDED(query_qp, "IBVERBS_1.1"),
    MILLRACE_NEEDED(destroy_qp, "IBVERBS_1.1"),
    MILLRACE_NEEDED(create_ah, "IBVERBS_1.1"),
    MILLRACE_NEEDED(destroy_ah, "IBVERBS_1.1"),
    MILLRACE_NEEDED(attach_mcast, "IBVERBS_1.1"),
    MILLRACE_NEEDED(detach_mcast, "IBVERBS_1.1"),
    // The names that verbs.h's inlines call, where they differ.
    MILLRACE_OPTIONAL(query_gid_ex, "_ibv_query_gid_ex", "IBVERBS_1.11"),
    MILLRACE_OPTIONAL(query_gid_table, "_ibv_query_gid_table", "IBVERBS_1.11"),
    MILLRACE_OPTIONAL(resolve_eth_l2_from_gid, "ibv_resolve_eth_l2_from_gid", "IBVERBS_1.1"),
    MILLRACE_OPTIONAL(init_ah_from_wc, "ibv_init_ah_from_wc", "IBVERBS_1.1"),
    MILLRACE_OPTIONAL(rereg_mr, "ibv_rereg_mr", "IBVERBS_1.1"),
    MILLRACE_OPTIONAL(reg_dmabuf_mr, "ibv_reg_dmabuf_mr", "IBVERBS_1.12"),
    MILLRACE_OPTIONAL(import_device, "ibv_import_device", "IBVERBS_1.10"),
    MILLRACE_OPTIONAL(import_pd, "ibv_import_pd", "IBVERBS_1.10"),
    MILLRACE_OPTIONAL(unimport_pd, "ibv_unimport_pd", "IBVERBS_1.10"),
    MILLRACE_OPTIONAL(import_mr, "ibv_import_mr", "IBVERBS_1.10"),
    MILLRACE_OPTIONAL(unimport_mr, "ibv_unimport_mr", "IBVERBS_1.10"),
    MILLRACE_OPTIONAL(import_dm, "ibv_import_dm", "IBVERBS_1.13"),
    MILLRACE_OPTIONAL(unimport_dm, "ibv_unimport_dm", "IBVERBS_1.13"),
    MILLRACE_OPTIONAL(fork_init, "ibv_fork_init", "IBVERBS_1.1"),
    MILLRACE_OPTIONAL(is_fork_initialized, "ibv_is_fork_initialized", "IBVERBS_1.13"),
    MILLRACE_OPTIONAL(qp_to_qp_ex, "ibv_qp_to_qp_ex", "IBVERBS_1.6"),
    MILLRACE_OPTIONAL(query_ece, "ibv_query_ece", "IBVERBS_1.10"),
    MILLRACE_OPTIONAL(set_ece, "ibv_set_ece", "IBVERBS_1.10"),
    MILLRACE_OPTIONAL(query_qp_data_in_order, "ibv_query_qp_data_in_order", "IBVERBS_1.14"),
};
// `name` and `owns` are ours; every other member of Provider must be in the list above.
static_assert(sizeof(Provider) == (2 + std::size(kEntries)) * sizeof(void*),
              "a call was added to Provider: name the library's symbol for it in kEntries");

bool owns(const ibv_device* device) { return !soft::provider()->owns(device); }

/** The wanted version, so that a default that moved to another signature does not matter; a
 * library that does not version its names (a static distribution's) has but one. */
void* find(void* library, const Entry& entry) {
  void* const symbol = dlvsym(library, entry.symbol, entry.version);
  return symbol != nullptr ? symbol : dlsym(library, entry.symbol);
}

/** The file that a symbol of it came from. */
std::string file_of(const void* symbol, const char* otherwise) {
  Dl_info info = {};
  return dladdr(symbol, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : otherwise;
}

}  // namespace

SystemLibrary load_library(const char* file, Provider* table) {
  SystemLibrary found;
  // RTLD_LOCAL: its names must not take the place of anybody else's.
  void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = dlerror();
    found.problem = base::format("%s could not be loaded (%s); apt-get install libibverbs1", file,
                                 reason != nullptr ? reason : "no reason given");
    return found;
  }
  if (const void* const marker = dlsym(library, kDropinMarker)) {
    found.path = file_of(marker, file);
    found.dropin = true;
    found.problem =
        base::format("%s is millrace's own (millrace verbs): it has the software device only",
                     found.path.c_str());
    dlclose(library);
    return found;
  }
  const void* const first = dlsym(library, "ibv_get_device_list");
  found.path = first != nullptr ? file_of(first, file) : file;
  table->name = "system";
  table->owns = owns;
  for (const Entry& entry : kEntries) {
    void* const symbol = find(library, entry);
    if (symbol == nullptr && entry.needed) {
      found.problem = base::format("%s has no %s: it is too old (rdma-core 28 or newer is needed)",
                                   found.path.c_str(), entry.symbol);
      dlclose(library);
      return found;
    }
    memcpy(reinterpret_cast<char*>(table) + entry.offset, &symbol, sizeof(symbol));
  }
  found.provider = table;
  return found;
}

const SystemLibrary& system_library() {
  // Neither is ever destroyed: threads of the library may run until the process ends.
  static Provider* const table = new Provider();
  static const SystemLibrary* const library =
      new SystemLibrary(load_library("libibverbs.so.1", table));
  return *library;
}

}  // namespace millrace::verbs
