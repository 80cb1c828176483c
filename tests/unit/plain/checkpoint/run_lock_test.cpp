#include "dtrain/checkpoint/store/run_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <memory>
#include <thread>

#include "support/messages.h"
#include "support/temp_folder.h"

namespace dtrain::checkpoint::store::run_lock_test {
namespace {

using base::ErrorKind;
using Catch::Matchers::Contains;
using dtrain::testing::message_of;
using dtrain::testing::Names;
using dtrain::testing::TempFolder;

/// A process that holds the lock of a folder until it is killed.
class Holder {
 public:
  explicit Holder(const std::string& folder) {
    std::array<int, 2> ready{};
    REQUIRE(::pipe(ready.data()) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      try {
        const RunLock lock(folder, std::chrono::milliseconds(0));
        std::ignore = ::write(ready[1], "x", 1);
        for (;;) ::pause();
      } catch (...) {
        ::_exit(1);
      }
    }
    ::close(ready[1]);
    char byte = 0;
    REQUIRE(::read(ready[0], &byte, 1) == 1);
    ::close(ready[0]);
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  ~Holder() { reap(); }

  [[nodiscard]] pid_t pid() const { return pid_; }
  void kill() const { ::kill(pid_, SIGKILL); }

 private:
  void reap() {
    kill();
    ::waitpid(pid_, nullptr, 0);
  }

  pid_t pid_ = -1;
};

TEST_CASE("A second job on a run folder is rejected with host and process of the first") {
  const TempFolder folder;
  const Holder first(folder.path(""));
  std::array<char, 256> host{};
  REQUIRE(::gethostname(host.data(), host.size() - 1) == 0);
  CHECK_THAT(message_of(ErrorKind::usage,
                        [&] { RunLock(folder.path(""), std::chrono::milliseconds(100)); }),
             Contains(folder.path("")) && Contains(fmt::format("process {} ", first.pid())) &&
                 Contains(host.data()));
}

TEST_CASE("The lock of a killed job passes to a waiting one") {
  const TempFolder folder;
  const Holder first(folder.path(""));
  const pid_t killer = ::fork();
  if (killer == 0) {
    ::usleep(200'000);
    first.kill();
    ::_exit(0);
  }
  CHECK_NOTHROW(RunLock(folder.path(""), std::chrono::seconds(60)));
  ::waitpid(killer, nullptr, 0);
}

TEST_CASE("A lock ends with its holder, and the file names the next one") {
  const TempFolder folder;
  folder.write("lock", std::string(300, 'x'));  // of an earlier job
  {
    const RunLock mine(folder.path(""));
    CHECK_THAT(folder.read("lock"), Contains(fmt::format("process {} ", ::getpid())));
    CHECK_THAT(folder.read("lock"), !Contains("x"));
    message_of(ErrorKind::usage, [&] { RunLock(folder.path(""), std::chrono::milliseconds(0)); });
  }
  CHECK_NOTHROW(RunLock(folder.path(""), std::chrono::milliseconds(0)));
}

TEST_CASE("A process that reuses the holder's PID does not hold the lock") {
  const TempFolder folder;
  const std::string path = folder.path("lock");
  std::string holder;
  {
    const RunLock mine(folder.path(""));
    holder = folder.read("lock");
  }
  const auto wait_for_lock_of = [&](const std::string& text) {
    folder.write("lock", text);
    base::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    REQUIRE(::flock(file.get(), LOCK_EX) == 0);
    std::thread releaser([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      file = base::Descriptor();
    });
    bool is_refused = false;
    try {
      const RunLock next(folder.path(""), std::chrono::milliseconds(0));
    } catch (const base::Error&) {
      is_refused = true;
    }
    releaser.join();
    return !is_refused;
  };
  CHECK_FALSE(wait_for_lock_of(holder));
  CHECK(wait_for_lock_of(holder + "0"));  // the same PID, started later
}

TEST_CASE("A link, a FIFO or another user's file is rejected and left unchanged") {
  const TempFolder folder;
  const auto refusal = [&] {
    return message_of(ErrorKind::usage,
                      [&] { RunLock(folder.path(""), std::chrono::milliseconds(0)); });
  };
  const std::string precious = folder.write("precious", "twenty years of work");
  std::filesystem::create_symlink(precious, folder.path("lock"));
  CHECK_THAT(refusal(), Names("lock", "link"));
  CHECK(folder.read("precious") == "twenty years of work");
  std::filesystem::remove(folder.path("lock"));
  REQUIRE(::mkfifo(folder.path("lock").c_str(), 0600) == 0);
  CHECK_THAT(refusal(), Names("lock", "regular file"));
  std::filesystem::remove(folder.path("lock"));
  folder.write("lock", "a stranger's");
  if (::chown(folder.path("lock").c_str(), 12345, 12345) != 0) return;  // requires root
  CHECK_THAT(refusal(), Names("user 12345"));
  CHECK(folder.read("lock") == "a stranger's");
}

TEST_CASE("A lock detects that another file replaced it") {
  const TempFolder folder;
  const RunLock mine(folder.path(""));
  CHECK_FALSE(mine.is_replaced());
  std::filesystem::remove(folder.path("lock"));
  CHECK_FALSE(mine.is_replaced());
  const RunLock another(folder.path(""));
  CHECK(mine.is_replaced());
  CHECK_FALSE(another.is_replaced());
}

TEST_CASE("A new lock file is removed with its lock unless kept") {
  const TempFolder folder;
  { const RunLock refused(folder.path("")); }
  CHECK_FALSE(std::filesystem::exists(folder.path("lock")));
  {
    RunLock begun(folder.path(""));
    begun.keep();
  }
  CHECK(std::filesystem::exists(folder.path("lock")));
  { const RunLock refused(folder.path("")); }
  CHECK(std::filesystem::exists(folder.path("lock")));
}

TEST_CASE("Waiting for a removed lock file locks its replacement") {
  const TempFolder folder;
  auto first = std::make_unique<RunLock>(folder.path(""));
  std::thread remover([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    first.reset();
  });
  const RunLock second(folder.path(""), std::chrono::seconds(60));
  remover.join();
  CHECK(std::filesystem::exists(folder.path("lock")));
  message_of(ErrorKind::usage, [&] { RunLock(folder.path(""), std::chrono::milliseconds(0)); });
}

TEST_CASE("A lock in a missing folder is rejected by name") {
  const TempFolder folder;
  CHECK_THAT(message_of(ErrorKind::checkpoint, [&] { RunLock(folder.path("absent")); }),
             Contains(folder.path("absent/lock")));
}

}  // namespace
}  // namespace dtrain::checkpoint::store::run_lock_test
