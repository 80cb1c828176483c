#include <algorithm>
#include <catch2/catch.hpp>

#include "dtrain/job/job.h"
#include "support/messages.h"
#include "support/settings.h"

namespace dtrain::job::agreed_settings_test {
namespace {

config::Config with_kernels(const char* kernels) {
  config::Config config;
  set(config, "machine.kernels", kernels);
  return config;
}

/// The name under which a setting is compared; empty: it is not.
std::string name_of(const config::Config& config, const std::string& key) {
  for (const auto& [name, value] : agreed_settings(config)) {
    if (name.starts_with(key)) return name;
  }
  return {};
}

TEST_CASE("Ranks need not agree on what differs between nodes and changes no bit") {
  const config::Config config = with_kernels("fused");
  CHECK(name_of(config, "layout.nnodes").empty());
  CHECK(name_of(config, "machine.threads").empty());
  CHECK(name_of(config, "machine.interface").empty());
  CHECK(name_of(config, "train.seed") == "train.seed");
}

TEST_CASE("Where memory decides what is recomputed, ranks must agree on their threads") {
  config::Config config = with_kernels("fused");
  set(config, "machine.recompute", "auto");
  CHECK(name_of(config, "machine.threads").empty());
  set(config, "machine.memory_limit", "1GiB");
  CHECK(name_of(config, "machine.threads").starts_with("machine.threads"));
}

TEST_CASE("Where threads change bits, ranks must agree on them, and are told how") {
  CHECK_THAT(name_of(with_kernels("plain"), "machine.threads"),
             testing::Names("machine.threads", "--threads"));
}

}  // namespace
}  // namespace dtrain::job::agreed_settings_test
