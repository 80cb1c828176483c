#include "dtrain/commands/build_text.h"

#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include <nlohmann/json.hpp>

namespace dtrain::commands {

std::string build_text(const config::StartRecord& record) {
  const auto program = nlohmann::json::parse(record.provenance);
  return fmt::format("dtrain {} (commit {}), LibTorch {}", program.value("version", "?"),
                     program.value("commit", "?"), TORCH_VERSION);
}

}  // namespace dtrain::commands
