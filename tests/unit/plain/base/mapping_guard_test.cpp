
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "dtrain/base/io/descriptor.h"
#include "dtrain/base/io/mapped_file.h"
#include "support/messages.h"
#include "support/temp_folder.h"

namespace dtrain::base::mapping_guard_test {
namespace {

using testing::Names;
using testing::TempFolder;

constexpr FileRole kRole{ErrorKind::checkpoint, "model", "give another"};

/// The wait status of a child process that runs f, and what it writes to standard error in
/// `output`.
template <typename F>
int status_of(const TempFolder& folder, std::string& output, F f) {
  const std::string path = folder.write("error", "");
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::signal(SIGBUS, SIG_DFL);  // Catch2's handler
    [[maybe_unused]] const auto* opened = std::freopen(path.c_str(), "w", stderr);
    f();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  output = folder.read("error");
  return status;
}

[[nodiscard]] int touch(const MappedFile& file) {
  return std::to_integer<int>(*static_cast<const volatile std::byte*>(file.bytes().data()));
}

TEST_CASE("A mapped file that is shortened ends the process with its line and status") {
  const TempFolder folder;
  const std::string path = folder.write("f", std::string(10'000, 'x'));
  std::string output;
  int status = status_of(folder, output, [&] {
    MappedFile first = MappedFile::open(path, kRole);
    const MappedFile moved = std::move(first);
    { const MappedFile gone = MappedFile::open(path, kRole); }
    std::filesystem::resize_file(path, 0);
    std::thread([&] { ::_exit(touch(moved)); }).join();
  });
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == static_cast<int>(ErrorKind::checkpoint));
  CHECK_THAT(output, Catch::StartsWith("dtrain: error: ") && Names(path));
  CHECK(output.find('\n') == output.size() - 1);
}

TEST_CASE("A mapped file keeps its bytes until it is moved from") {
  const TempFolder folder;
  MappedFile first = MappedFile::open(folder.write("f", "12345"), kRole);
  const MappedFile moved = std::move(first);
  CHECK(moved.bytes().size() == 5);
  CHECK(first.bytes().empty());
}

TEST_CASE("Other bus errors keep their signal, whatever is guarded") {
  const TempFolder folder;
  const std::string path = folder.write("f", std::string(10'000, 'x'));
  std::string output;
  const auto faults = [&](auto f) {
    const int status = status_of(folder, output, [&] {
      const MappedFile guarded = MappedFile::open(path, kRole);
      f(guarded);
    });
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS && output.empty();
  };
  CHECK(faults([](const MappedFile&) { ::raise(SIGBUS); }));
  CHECK(faults([&](const MappedFile&) {
    const InputFile file = InputFile::open(path, kRole);
    const auto* bytes = static_cast<const volatile char*>(
        ::mmap(nullptr, 10'000, PROT_READ, MAP_SHARED, file.descriptor(), 0));
    std::filesystem::resize_file(path, 0);
    ::_exit(bytes[0]);
  }));
}

}  // namespace
}  // namespace dtrain::base::mapping_guard_test
