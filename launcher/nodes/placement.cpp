#include "launcher/nodes/placement.h"

#include <fmt/format.h>
#include <unistd.h>

namespace launcher {

std::string name_of(const Placement& placement, int node) {
  return fmt::format("node {} ({})", node, placement.node(node).host);
}

std::string host_name() {
  char name[256] = "?";
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace launcher
