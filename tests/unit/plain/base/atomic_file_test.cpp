#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "dtrain/base/file_system.h"
#include "support/messages.h"
#include "support/temp_folder.h"

namespace dtrain::base::atomic_file_test {
namespace {

using dtrain::testing::message_of;
using dtrain::testing::Names;
using dtrain::testing::TempFolder;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST_CASE("An atomic file is there with all its bytes after commit") {
  const TempFolder folder;
  AtomicFile file(folder.path("a"), ErrorKind::data);
  file.write(bytes_of("one "));
  file.write(bytes_of("two"));
  CHECK_FALSE(std::filesystem::exists(folder.path("a")));
  file.commit();
  CHECK(folder.read("a") == "one two");
  CHECK(folder.count() == 1);
}

TEST_CASE("Without commit the old file stays and nothing else is left") {
  const TempFolder folder;
  folder.write("a", "old");
  {
    AtomicFile file(folder.path("a"), ErrorKind::data);
    file.write(bytes_of("new"));
  }
  CHECK(folder.read("a") == "old");
  CHECK(folder.count() == 1);
}

TEST_CASE("Two writers of one name do not disturb each other") {
  const TempFolder folder;
  AtomicFile first(folder.path("a"), ErrorKind::data);
  AtomicFile second(folder.path("a"), ErrorKind::data);
  first.write(bytes_of("first"));
  second.write(bytes_of("second"));
  first.commit();
  CHECK(folder.read("a") == "first");
  second.commit();
  CHECK(folder.read("a") == "second");
  CHECK(folder.count() == 1);
}

TEST_CASE("What killed writers of a file left is removed, and nothing else is") {
  const TempFolder folder;
  for (const char* name :
       {"a", "a.tmp-12-0", "a.tmp-12-1", "b.tmp-12-0", "xa.tmp-1-0", "a.tmp-mine"}) {
    folder.write(name, "x");
  }
  remove_temporaries_of(folder.path("a"), ErrorKind::data);
  CHECK(folder.count() == 4);
  CHECK(folder.read("a") == "x");
  CHECK(folder.read("b.tmp-12-0") == "x");
  CHECK(folder.read("a.tmp-mine") == "x");
  CHECK(folder.read("xa.tmp-1-0") == "x");
  CHECK_NOTHROW(remove_temporaries_of(folder.path("absent/a"), ErrorKind::data));
}

TEST_CASE("A file that cannot be created is named with the reason") {
  const TempFolder folder;
  const std::string path = folder.path("missing/a");
  const std::string message =
      message_of(ErrorKind::checkpoint, [&] { AtomicFile(path, ErrorKind::checkpoint); });
  CHECK_THAT(message, Names(path, std::strerror(ENOENT)));
}

TEST_CASE("A file that cannot grow is named, and nothing is left of it") {
  const TempFolder folder;
  const std::string path = folder.path("a");
  const pid_t child = ::fork();
  if (child == 0) {
    // A limit on file size stands for a full disk; it holds for the whole process.
    const rlimit limit{.rlim_cur = 4096, .rlim_max = 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    ::signal(SIGXFSZ, SIG_IGN);
    try {
      AtomicFile file(path, ErrorKind::data);
      file.write(std::vector<std::byte>(10'000));
    } catch (const Error& error) {
      const std::string message = error.what();
      ::_exit(message.find(path) != std::string::npos &&
                      message.find("File too large") != std::string::npos
                  ? 3
                  : 4);
    }
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 3);
  CHECK(folder.count() == 0);
}

}  // namespace
}  // namespace dtrain::base::atomic_file_test
