#include "soft/provider.h"

namespace millrace::soft {
const verbs::Provider* provider() { return nullptr; }
base::Status last_error() { return {}; }
}  // namespace millrace::soft
