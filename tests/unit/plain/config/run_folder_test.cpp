#include "dtrain/config/run_folder.h"

#include <catch2/catch.hpp>

#include "support/messages.h"
#include "support/settings.h"
#include "support/temp_folder.h"

namespace dtrain::config::run_folder_test {
namespace {

using testing::message_of;
using testing::Names;
using testing::TempFolder;

Config run_in(const std::string& folder, const std::string& resume = "none") {
  Config config;
  config.run.dir = folder;
  set(config, "checkpoint.resume", resume);
  return config;
}

TEST_CASE("A folder that contains a run is rejected unless the start resumes or overwrites it") {
  const TempFolder folder;
  folder.write("run/metrics.jsonl", "{}\n");
  folder.write("run/checkpoints/step-4/manifest.json", "{}");
  const std::string run = folder.path("run");
  const auto refused = [&](const Config& config) {
    return message_of(base::ErrorKind::usage, [&] { check_run_folder(config); });
  };
  CHECK_THAT(refused(run_in(run)), Names(run, "--resume auto"));
  CHECK_THAT(refused(run_in(run, folder.path("other/checkpoints/step-4"))),
             Names(run, "--overwrite"));
  check_run_folder(run_in(run, "auto"));
  check_run_folder(run_in(run, run + "/checkpoints/step-4"));
  check_run_folder(run_in(run, run + "/../run"));
  Config overwriting = run_in(run);
  overwriting.run.overwrite = true;
  check_run_folder(overwriting);
}

TEST_CASE("A folder whose parent is not writable is rejected") {
  const std::string refused =
      message_of(base::ErrorKind::usage, [&] { check_run_folder(run_in("/proc/version/run")); });
  CHECK_THAT(refused, Catch::Contains("/proc/version"));
}

TEST_CASE("A given run folder is used unchanged") {
  base::NewFolders made;
  CHECK(create_run_folder(run_in("somewhere/run"), made) == "somewhere/run");
}

}  // namespace
}  // namespace dtrain::config::run_folder_test
