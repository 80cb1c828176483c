#include "launcher/nodes/port_holder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>

#include "dtrain/base/printable.h"

namespace launcher {
namespace {

constexpr std::string_view kListening = "0A";  // TCP_LISTEN in /proc/net/tcp

struct Holder {
  std::string user;
  std::string inode;
};

/// The socket that listens at the port, in a table such as /proc/net/tcp.
std::optional<Holder> listener_in(const char* table, int port) {
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);  // the heading
  const std::string ending = fmt::format(":{:04X}", port);
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string number, local, remote, state, queues, timer, retransmits, user, timeouts, inode;
    words >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
        timeouts >> inode;
    if (words && state == kListening && local.ends_with(ending)) return Holder{user, inode};
  }
  return std::nullopt;
}

bool holds(const std::filesystem::path& process, const std::string& link) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(process / "fd", error), end; !error && at != end;
       at.increment(error)) {
    std::error_code unread;
    if (std::filesystem::read_symlink(at->path(), unread) == link) return true;
  }
  return false;
}

}  // namespace

std::string holder_of_port(int port) {
  std::optional<Holder> holder;
  for (const char* const table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    if (!holder) holder = listener_in(table, port);
  }
  if (!holder) return "another program";
  const std::string link = fmt::format("socket:[{}]", holder->inode);
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc", error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (std::isdigit(static_cast<unsigned char>(name.front())) == 0) continue;
    if (!holds(at->path(), link)) continue;
    std::string command = "a process";
    std::ifstream file(at->path() / "comm");
    std::getline(file, command);
    return fmt::format("{} (pid {})", dtrain::base::printable(command), name);
  }
  return "user " + holder->user;
}

}  // namespace launcher
