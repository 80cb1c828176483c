// What a rank's pipe gives when the rank has ended.
#include "launcher/rank_stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include "launcher/processes.h"

namespace launcher::rank_stream_test {
namespace {

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
  stream.read_what_is_there(console);
  CHECK(::write(pipe.writer.get(), "last\n", 5) == 5);
  stream.finish(console);
  CHECK(stream.last_lines().back() == "last");
}

}  // namespace
}  // namespace launcher::rank_stream_test
