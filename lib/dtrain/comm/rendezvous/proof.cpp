#include "dtrain/comm/rendezvous/proof.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>

#include "dtrain/base/error.h"
#include "dtrain/comm/rendezvous/descriptor.h"
#include "dtrain/comm/rendezvous/wire.h"

namespace dtrain::comm {

namespace {

using base::ErrorKind;
using base::fail;

constexpr std::size_t kLeastTokenBytes = 16;
constexpr std::size_t kMostTokenBytes = 4096;
constexpr std::string_view kEstablished = "01";  // TCP_ESTABLISHED in /proc/net/tcp

/// As /proc/net/tcp and tcp6 write an address: words of the network's bytes, read as the machine's.
std::string proc_text(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &address, sizeof v4);
    return fmt::format("{:08X}:{:04X}", v4.sin_addr.s_addr, ntohs(v4.sin_port));
  }
  sockaddr_in6 v6{};
  std::memcpy(&v6, &address, sizeof v6);
  std::array<std::uint32_t, 4> words{};
  std::memcpy(words.data(), &v6.sin6_addr, sizeof words);
  return fmt::format("{:08X}{:08X}{:08X}{:08X}:{:04X}", words[0], words[1], words[2], words[3],
                     ntohs(v6.sin6_port));
}

/// The content of the token file, which must be this user's alone.
std::string read_token(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) {
    fail(ErrorKind::usage, "DTRAIN_JOB_TOKEN_FILE: cannot read {}: {}", path, std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 077) != 0) {
    fail(ErrorKind::usage,
         "DTRAIN_JOB_TOKEN_FILE: {} must be a file of this user that others cannot read; chmod 600",
         path);
  }
  std::string text(kMostTokenBytes + 1, '\0');
  const ssize_t count = ::read(file.get(), text.data(), text.size());
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

}  // namespace

std::string new_challenge() {
  std::string bytes(32, '\0');
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t count = ::getrandom(bytes.data() + done, bytes.size() - done, 0);
    if (count < 0 && errno != EINTR) {
      fail(ErrorKind::comm, "no random numbers: {}", std::strerror(errno));
    }
    if (count > 0) done += static_cast<std::size_t>(count);
  }
  return bytes;
}

std::string hmac_sha256(std::string_view key, std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> mac{};
  unsigned int length = 0;
  if (::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(),
             &length) == nullptr) {
    fail(ErrorKind::comm, "OpenSSL gives no HMAC-SHA-256, by which ranks know each other");
  }
  return {reinterpret_cast<const char*>(mac.data()), length};
}

std::string proof_of(std::string_view token, std::string_view who, const Exchange& exchange) {
  return hmac_sha256(token, MessageWriter()
                                .text(kStoreGreeting)
                                .text(who)
                                .text(exchange.store_challenge)
                                .text(exchange.rank_challenge)
                                .number(exchange.rank)
                                .number(exchange.size)
                                .bytes());
}

bool is_same_proof(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::optional<uid_t> user_of_unix_peer(int descriptor) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return std::nullopt;
  return peer.uid;
}

std::optional<uid_t> user_of_tcp_peer(int descriptor) {
  sockaddr_storage own{};
  sockaddr_storage other{};
  socklen_t own_length = sizeof own;
  socklen_t other_length = sizeof other;
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &own_length) != 0 ||
      ::getpeername(descriptor, reinterpret_cast<sockaddr*>(&other), &other_length) != 0) {
    return std::nullopt;
  }
  const std::string local = proc_text(other);  // the row of the other end
  const std::string remote = proc_text(own);
  const char* const name = own.ss_family == AF_INET ? "/proc/net/tcp" : "/proc/net/tcp6";
  errno = 0;
  std::ifstream table(name);
  std::string line;
  if (!std::getline(table, line)) {  // the heading
    fail(ErrorKind::comm,
         "cannot see whose a connection is ({}: {}); give every rank the same DTRAIN_JOB_TOKEN",
         name, std::strerror(errno));
  }
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string number, from, to, state, queues, timer, retransmits;
    std::string timeouts, inode;
    uid_t user = 0;
    words >> number >> from >> to >> state >> queues >> timer >> retransmits >> user >> timeouts >>
        inode;
    if (!words || from != local || to != remote) continue;
    // The kernel gives an end that was closed to user 0, whose ever it was.
    const bool is_open = state == kEstablished && inode != "0";
    return is_open ? std::optional(user) : std::nullopt;
  }
  return std::nullopt;
}

std::string job_secret(const std::string& token, const std::string& token_file) {
  if (!token.empty() && !token_file.empty()) {
    fail(ErrorKind::usage,
         "DTRAIN_JOB_TOKEN and DTRAIN_JOB_TOKEN_FILE are both set; leave one of them out");
  }
  const char* const name = token_file.empty() ? "DTRAIN_JOB_TOKEN" : "DTRAIN_JOB_TOKEN_FILE";
  const std::string secret = token_file.empty() ? token : read_token(token_file);
  const bool is_given = !token.empty() || !token_file.empty();
  if (is_given && (secret.size() < kLeastTokenBytes || secret.size() > kMostTokenBytes)) {
    fail(ErrorKind::usage,
         "{}: found a secret of {} bytes; give {} to {}, e.g. of openssl rand -hex 32", name,
         secret.size(), kLeastTokenBytes, kMostTokenBytes);
  }
  return secret;
}

}  // namespace dtrain::comm
