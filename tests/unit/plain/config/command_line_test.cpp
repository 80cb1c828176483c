#include "dtrain/config/command_line.h"

#include <catch2/catch.hpp>

#include "support/command_line.h"
#include "support/messages.h"
#include "support/settings.h"

namespace dtrain::config::command_line_test {
namespace {

using Catch::Matchers::Contains;
using Words = std::vector<std::string>;
using dtrain::testing::Names;

ExportConfig parse(const Words& words) {
  return load(parse_command_line(Command::export_checkpoint, words)).config.exporting;
}

TEST_CASE("Words without a flag fill their settings in order, wherever flags stand") {
  for (const Words& words : {Words{"run", "m.safetensors", "--dtype", "float16"},
                             Words{"--dtype", "float16", "run", "m.safetensors"},
                             Words{"run", "--dtype=float16", "m.safetensors"}}) {
    const ExportConfig found = parse(words);
    CHECK(found.checkpoint == "run");
    CHECK(found.file == "m.safetensors");
    CHECK(found.dtype == Dtype::float16);
  }
  CHECK(parse({"run"}).checkpoint == "run");
  CHECK(parse({"run"}).file.empty());
}

TEST_CASE("A word too many is refused") {
  CHECK_THROWS_WITH(parse({"run", "m.safetensors", "more"}), Contains("\"more\""));
  CHECK_THROWS_WITH(parse_command_line(Command::train, {"run"}), Contains("\"run\""));
}

TEST_CASE("A flag means the setting of its own command") {
  const auto train = parse_command_line(Command::train, {"--dtype", "float64"});
  CHECK(load(train).config.machine.dtype == Dtype::float64);
  CHECK(load(train).config.exporting.dtype == Dtype::automatic);
  CHECK(parse({"--dtype", "bfloat16"}).dtype == Dtype::bfloat16);
  CHECK_THROWS_WITH(load(parse_command_line(Command::train, {"--backend", "nccl"})),
                    Names("nccl", "--device cuda"));
}

}  // namespace
}  // namespace dtrain::config::command_line_test
