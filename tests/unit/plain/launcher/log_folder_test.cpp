#include "launcher/log_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "dtrain/base/error.h"
#include "support/temp_folder.h"

namespace launcher::log_folder_test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("Launchers of several nodes share a folder of logs, but take no link for it") {
  const dtrain::testing::TempFolder folder;
  Options options;
  options.log_dir = folder.path("logs");
  options.redirects = StreamChoice(3);
  Placement placement;
  placement.nodes = {{"hosta", 0, 1}, {"hostb", 1, 1}};
  placement.run_id = "run";
  const LogFolder first(options, placement);
  placement.node_rank = 1;
  const LogFolder second(options, placement);
  CHECK(fs::is_directory(fs::path(options.log_dir) / "run/attempt_0/1"));
  fs::create_directory(fs::path(options.log_dir) / "elsewhere");
  fs::create_directory_symlink("elsewhere", fs::path(options.log_dir) / "link");
  placement.run_id = "link";
  CHECK_THROWS_AS(LogFolder(options, placement), dtrain::base::Error);
  CHECK(fs::is_empty(fs::path(options.log_dir) / "elsewhere"));
}

}  // namespace
}  // namespace launcher::log_folder_test
