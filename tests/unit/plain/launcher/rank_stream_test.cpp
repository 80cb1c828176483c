#include "launcher/local/rank_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <utility>

#include "dtrain/base/error.h"
#include "launcher/local/processes.h"
#include "launcher/output/log_folder.h"
#include "support/temp_folder.h"

namespace launcher::rank_stream_test {
namespace {

namespace fs = std::filesystem;

// What a rank's pipe gives when the rank has ended.
RankStreamOptions hidden_error() {
  RankStreamOptions options;
  options.stream = Stream::error;
  options.shown = false;
  return options;
}

TEST_CASE("a process that writes without pause does not keep a stream from its end") {
  SharedOutput console("dtrun: ");
  RankStream stream(dtrain::base::Descriptor(::open("/dev/zero", O_RDONLY | O_CLOEXEC)),
                    hidden_error());
  stream.finish(console);
  CHECK_FALSE(stream.open());
}

TEST_CASE("all that a full pipe holds is taken at the end") {
  SharedOutput console("dtrun: ");
  Pipe pipe = make_pipe();
  const int size = ::fcntl(pipe.writer.get(), F_SETPIPE_SZ, 1 << 20);
  ::fcntl(pipe.writer.get(), F_SETFL, O_NONBLOCK);
  const std::string line = std::string(99, 'x') + "\n";
  while (::write(pipe.writer.get(), line.data(), line.size()) == std::ssize(line)) {
  }
  INFO("a pipe of " << size << " bytes");
  RankStream stream(std::move(pipe.reader), hidden_error());
  stream.drain(console);
  CHECK(::write(pipe.writer.get(), "last\n", 5) == 5);
  stream.finish(console);
  CHECK(stream.last_lines().back() == "last");
}

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
}  // namespace launcher::rank_stream_test
