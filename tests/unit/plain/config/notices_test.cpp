#include "dtrain/config/resolve/notices.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "dtrain/config/resolve/resolve.h"
#include "support/messages.h"
#include "support/settings.h"

namespace dtrain::config::notices_test {
namespace {

TEST_CASE("Sequences beyond a Llama's positions trigger one warning with both values") {
  Config config;
  set(config, "model.name", "llama");
  set(config, "model.max_positions", "96");
  const testing::Names both("--seq-len", 97, "--max-positions", 96);
  const auto count = [&](std::int64_t seq_len) {
    config.data.seq_len = seq_len;
    const Config resolved = resolve(Command::train, config, {.usable_cores = 8});
    const std::vector<std::string> lines = warnings(Command::train, resolved);
    return std::ranges::count_if(lines, [&](const auto& line) { return both.match(line); });
  };
  CHECK(count(96) == 0);
  CHECK(count(97) == 1);
}

TEST_CASE("A layout flag without effect triggers a warning even at its default") {
  Config config;
  set(config, "layout.strategy", "ddp");
  const Config resolved = resolve(Command::train, config, {.usable_cores = 8});
  const std::size_t others = warnings(Command::train, resolved).size();
  for (const Setting& setting : settings()) {
    INFO(setting.key);
    const Setting* const flags[] = {&setting};
    const bool is_conditional =
        setting.key.starts_with("layout.") && setting.requirements.all.front() != nullptr;
    const std::vector<std::string> lines = warnings(Command::train, resolved, flags);
    CHECK(lines.size() == others + (is_conditional ? 1U : 0U));
  }
}

}  // namespace
}  // namespace dtrain::config::notices_test
