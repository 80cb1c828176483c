#include "dtrain/checkpoint/store/names.h"
#include "support/messages.h"
#include "support/temp_folder.h"

namespace dtrain::checkpoint::store::locate_test {
namespace {

using base::ErrorKind;
using Catch::Matchers::Contains;
using dtrain::testing::message_of;
using dtrain::testing::Names;
using dtrain::testing::TempFolder;
using Paths = std::vector<std::string>;

std::string refusal(const std::string& path) {
  const std::string message =
      message_of(ErrorKind::checkpoint, [&] { std::ignore = checkpoints_at(path); });
  CHECK_THAT(message, Contains(path));
  return message;
}

TEST_CASE("A run folder stands for its checkpoints, newest first, and for no other folder") {
  const TempFolder folder;
  for (const char* name : {"step-9", "step-10", "step-2", "step-11.tmp-r", "step-8.superseded-r"}) {
    folder.write(std::string("run/checkpoints/") + name + "/manifest.json", "{}");
  }
  const std::string checkpoints = folder.path("run/checkpoints/");
  CHECK(checkpoints_at(folder.path("run")) ==
        Paths{checkpoints + "step-10", checkpoints + "step-9", checkpoints + "step-2"});
}

TEST_CASE("A checkpoint stands for itself, even without its manifest") {
  const TempFolder folder;
  folder.write("run/checkpoints/step-9/model.safetensors", "x");
  folder.write("imported/manifest.json", "{}");
  for (const char* name : {"run/checkpoints/step-9", "run/checkpoints/step-9/", "imported"}) {
    CHECK(checkpoints_at(folder.path(name)) == Paths{folder.path(name)});
  }
}

TEST_CASE("What is neither a run nor a checkpoint is refused by name") {
  const TempFolder folder;
  folder.write("empty/run/config.json", "{}");
  folder.write("file", "x");
  refusal(folder.path("missing"));
  refusal(folder.path("file"));
  CHECK_THAT(refusal(folder.path("empty")), Names("config.json", "--run-dir"));
  CHECK_THAT(refusal(folder.path("empty/run")), Names("--checkpoint-every"));
  CHECK(checkpoints_of_run(folder.path("empty/run")).empty());
}

}  // namespace
}  // namespace dtrain::checkpoint::store::locate_test
