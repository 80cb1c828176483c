#include "dtrain/net/proof.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>

#include "dtrain/base/error.h"
#include "dtrain/base/io/descriptor.h"

namespace dtrain::net {
namespace {

using base::ErrorKind;
using base::fail;

// Parts of OpenSSL's initialisation that an HMAC does not need; they would dominate the CPU time of
// a joining rank.
constexpr std::uint64_t kSkippedInit =
    OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_LOAD_CRYPTO_STRINGS |
    OPENSSL_INIT_NO_ADD_ALL_CIPHERS | OPENSSL_INIT_NO_ADD_ALL_DIGESTS;
constexpr std::size_t kMinTokenBytes = 16;
constexpr std::size_t kMaxTokenBytes = 4096;

/// Reads the token file, which only this user may access.
std::string read_token(const std::string& path) {
  const base::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) {
    fail(ErrorKind::usage, "DTRAIN_JOB_TOKEN_FILE: cannot read {}: {}", path, std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 077) != 0) {
    fail(ErrorKind::usage,
         "DTRAIN_JOB_TOKEN_FILE: {} must be a file of this user that others cannot read; chmod 600",
         path);
  }
  std::string text(kMaxTokenBytes + 1, '\0');
  const ssize_t count = ::read(file.get(), text.data(), text.size());
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

constexpr const char* kLibrary = "libmunge.so.2";

// Copied from munge's header, which need not be installed.
constexpr int kSuccess = 0;
constexpr int kOptionCipher = 0;
constexpr int kOptionReader = 9;
constexpr int kAes128 = 4;

using Context = struct MungeContext*;

/// The functions of libmunge.
struct Munge {
  int (*encode)(char**, Context, const void*, int) = nullptr;
  int (*decode)(const char*, Context, void**, int*, uid_t*, gid_t*) = nullptr;
  const char* (*describe)(int) = nullptr;
  Context (*create)() = nullptr;
  void (*destroy)(Context) = nullptr;
  int (*set)(Context, int, ...) = nullptr;
  std::string problem = {};  // why it cannot be used; empty: it can
};

template <typename Function>
void find(void* library, const char* name, Function& function, std::string& problem) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) problem = std::string(kLibrary) + " lacks " + name;
}

Munge open_library() {
  Munge munge;
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = ::dlerror();
    munge.problem = reason != nullptr ? reason : kLibrary;
    return munge;
  }
  find(library, "munge_encode", munge.encode, munge.problem);
  find(library, "munge_decode", munge.decode, munge.problem);
  find(library, "munge_strerror", munge.describe, munge.problem);
  find(library, "munge_ctx_create", munge.create, munge.problem);
  find(library, "munge_ctx_destroy", munge.destroy, munge.problem);
  find(library, "munge_ctx_set", munge.set, munge.problem);
  return munge;
}

/// Opened at the first call, and never closed.
const Munge& munge_library() {
  static const Munge munge = open_library();
  return munge;
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

constexpr std::string_view kEstablished = "01";  // TCP_ESTABLISHED in /proc/net/tcp

/// Writes port and address for netlink, both in network byte order.
void fill_in(const sockaddr_storage& from, __be16& port, std::array<__be32, 4>& address) {
  if (from.ss_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &from, sizeof v4);
    port = v4.sin_port;
    address[0] = v4.sin_addr.s_addr;
  } else {
    sockaddr_in6 v6{};
    std::memcpy(&v6, &from, sizeof v6);
    port = v6.sin6_port;
    std::memcpy(address.data(), &v6.sin6_addr, sizeof v6.sin6_addr);
  }
}

struct NetlinkRequest {
  nlmsghdr header{};
  inet_diag_req_v2 body{};
};

NetlinkRequest request_for(const TcpEnd& end) {
  NetlinkRequest request;
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.body.sdiag_family = static_cast<__u8>(end.local.ss_family);
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = ~0U;
  std::array<__be32, 4> local{};
  std::array<__be32, 4> remote{};
  inet_diag_sockid& id = request.body.id;
  fill_in(end.local, id.idiag_sport, local);
  fill_in(end.remote, id.idiag_dport, remote);
  std::memcpy(id.idiag_src, local.data(), sizeof id.idiag_src);
  std::memcpy(id.idiag_dst, remote.data(), sizeof id.idiag_dst);
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  return request;
}

/// Formats an address as /proc/net/tcp6 does: network-order words, printed in host order. An IPv4
/// address becomes its IPv4-mapped IPv6 form.
std::string proc_text(const sockaddr_storage& address) {
  __be16 port = 0;
  std::array<__be32, 4> words{};
  fill_in(address, port, words);
  if (address.ss_family == AF_INET) words = {0, 0, htonl(0xFFFF), words[0]};
  return fmt::format("{:08X}{:08X}{:08X}{:08X}:{:04X}", words[0], words[1], words[2], words[3],
                     ntohs(port));
}

/// Looks an end up in the table `name`. prefix: the part of proc_text that its addresses omit.
std::optional<TcpOwner> owner_in(const char* name, std::string_view prefix, const TcpEnd& end) {
  const std::string local = proc_text(end.local);
  const std::string remote = proc_text(end.remote);
  errno = 0;
  std::ifstream table(name);
  std::string line;
  if (!std::getline(table, line)) {  // the heading
    fail(ErrorKind::comm,
         "cannot find the owner of a connection ({}: {}); give every rank the same "
         "DTRAIN_JOB_TOKEN",
         name, std::strerror(errno));
  }
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string number, from, to, state, queues, timer, retransmits, timeouts;
    TcpOwner owner;
    words >> number >> from >> to >> state >> queues >> timer >> retransmits >> owner.user >>
        timeouts >> owner.inode;
    if (!words || from.insert(0, prefix) != local || to.insert(0, prefix) != remote) continue;
    owner.is_connected = state == kEstablished;
    return owner;
  }
  return std::nullopt;
}

}  // namespace

std::string new_challenge() {
  std::string bytes(32, '\0');
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t count = ::getrandom(bytes.data() + done, bytes.size() - done, 0);
    if (count < 0 && errno != EINTR) {
      fail(ErrorKind::comm, "cannot read random numbers from the system: {}", std::strerror(errno));
    }
    if (count > 0) done += static_cast<std::size_t>(count);
  }
  return bytes;
}

std::string hmac_sha256(std::string_view key, std::string_view text) {
  static const bool is_ready = ::OPENSSL_init_crypto(kSkippedInit, nullptr) == 1;
  std::array<unsigned char, EVP_MAX_MD_SIZE> mac{};
  unsigned int length = 0;
  if (!is_ready || ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
                          reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                          mac.data(), &length) == nullptr) {
    fail(ErrorKind::comm, "OpenSSL lacks HMAC-SHA-256, which ranks need to authenticate");
  }
  return {reinterpret_cast<const char*>(mac.data()), length};
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

std::string job_secret(const std::string& token, const std::string& token_file) {
  if (!token.empty() && !token_file.empty()) {
    fail(ErrorKind::usage,
         "DTRAIN_JOB_TOKEN and DTRAIN_JOB_TOKEN_FILE are both set; leave one of them out");
  }
  const char* const name = token_file.empty() ? "DTRAIN_JOB_TOKEN" : "DTRAIN_JOB_TOKEN_FILE";
  const std::string secret = token_file.empty() ? token : read_token(token_file);
  const bool is_given = !token.empty() || !token_file.empty();
  if (is_given && (secret.size() < kMinTokenBytes || secret.size() > kMaxTokenBytes)) {
    fail(ErrorKind::usage,
         "{}: found a secret of {} bytes; give {} to {}, e.g. from openssl rand -hex 32", name,
         secret.size(), kMinTokenBytes, kMaxTokenBytes);
  }
  return secret;
}

std::optional<std::string> encode_credential(std::string_view text, std::string& reason) {
  const Munge& munge = munge_library();
  reason = munge.problem;
  if (!reason.empty()) return std::nullopt;
  const std::unique_ptr<MungeContext, void (*)(Context)> context(munge.create(), munge.destroy);
  if (!context) {
    reason = "munge is out of memory";
    return std::nullopt;
  }
  // The daemon's default may be no encryption at all.
  munge.set(context.get(), kOptionCipher, kAes128);
  munge.set(context.get(), kOptionReader, ::geteuid());
  char* sealed = nullptr;
  const int error =
      munge.encode(&sealed, context.get(), text.data(), static_cast<int>(text.size()));
  const std::unique_ptr<char, Free> owner(sealed);
  if (error == kSuccess && sealed != nullptr) return sealed;
  reason = std::string("munge: ") + munge.describe(error);
  return std::nullopt;
}

std::string new_munge_secret() {
  std::string secret = new_challenge();
  std::string reason;
  return encode_credential(secret, reason) ? secret : std::string();
}

std::optional<std::string> decode_credential(const std::string& credential, std::string& reason) {
  const Munge& munge = munge_library();
  reason = munge.problem;
  if (!reason.empty()) return std::nullopt;
  void* text = nullptr;
  int length = 0;
  uid_t user = 0;
  gid_t group = 0;
  const int error = munge.decode(credential.c_str(), nullptr, &text, &length, &user, &group);
  const std::unique_ptr<void, Free> owner(text);
  if (error != kSuccess) {
    reason = std::string("munge: ") + munge.describe(error);
  } else if (user != ::geteuid()) {
    reason = "user " + std::to_string(user) + " encoded it, not " + std::to_string(::geteuid());
  } else if (text == nullptr || length <= 0) {
    reason = "it is empty";
  } else {
    return std::string(static_cast<const char*>(text), static_cast<std::size_t>(length));
  }
  return std::nullopt;
}

std::optional<TcpOwner> owner_by_netlink(const TcpEnd& end) {
  const base::Descriptor kernel(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  const NetlinkRequest request = request_for(end);
  if (kernel.get() < 0 || ::send(kernel.get(), &request, sizeof request, 0) < 0) return {};
  alignas(nlmsghdr) std::array<char, 1024> answer{};
  // The kernel has answered before send returned.
  const ssize_t count = ::recv(kernel.get(), answer.data(), answer.size(), MSG_DONTWAIT);
  nlmsghdr header{};
  inet_diag_msg found{};
  if (count < static_cast<ssize_t>(NLMSG_LENGTH(sizeof found))) return {};
  std::memcpy(&header, answer.data(), sizeof header);
  std::memcpy(&found, answer.data() + NLMSG_HDRLEN, sizeof found);
  // For an unknown connection the kernel may return the socket that listens at that port.
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY ||
      found.id.idiag_dport != request.body.id.idiag_dport) {
    return {};
  }
  return TcpOwner{.user = found.idiag_uid,
                  .inode = found.idiag_inode,
                  .is_connected = found.idiag_state == TCP_ESTABLISHED};
}

std::optional<TcpOwner> owner_by_table(const TcpEnd& end) {
  const std::string mapped = proc_text(end.local).substr(0, 24);
  const bool is_v4 = mapped == fmt::format("{:016X}{:08X}", 0, htonl(0xFFFF));
  if (is_v4) {
    if (auto owner = owner_in("/proc/net/tcp", mapped, end)) return owner;
    if (::access("/proc/net/tcp6", F_OK) != 0) return std::nullopt;  // a machine without IPv6
  }
  return owner_in("/proc/net/tcp6", "", end);
}

std::optional<uid_t> user_of_tcp_peer(int descriptor) {
  TcpEnd own;
  socklen_t local_length = sizeof own.local;
  socklen_t remote_length = sizeof own.remote;
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&own.local), &local_length) != 0 ||
      ::getpeername(descriptor, reinterpret_cast<sockaddr*>(&own.remote), &remote_length) != 0) {
    return std::nullopt;
  }
  const TcpEnd other{.local = own.remote, .remote = own.local};
  // Netlink answers alike for an unknown connection and an unsupported query: trust its answer
  // about the other end only if it knows this end.
  const auto owner = owner_by_netlink(own) ? owner_by_netlink(other) : owner_by_table(other);
  // The kernel assigns a closed end to user 0, whoever owned it.
  if (!owner || !owner->is_connected || owner->inode == 0) return std::nullopt;
  return owner->user;
}

}  // namespace dtrain::net
