#include "dtrain/net/proof.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
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
#include <memory>
#include <string_view>

#include "dtrain/base/descriptor.h"
#include "dtrain/base/error.h"

namespace dtrain::net {
namespace {

using base::ErrorKind;
using base::fail;

// The parts of OpenSSL's initialisation that an HMAC does not need; they would take most of the CPU
// time of a rank that joins.
constexpr std::uint64_t kSkippedInit =
    OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_LOAD_CRYPTO_STRINGS |
    OPENSSL_INIT_NO_ADD_ALL_CIPHERS | OPENSSL_INIT_NO_ADD_ALL_DIGESTS;
constexpr std::size_t kLeastTokenBytes = 16;
constexpr std::size_t kMostTokenBytes = 4096;

/// The content of the token file, which must be this user's alone.
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
  std::string text(kMostTokenBytes + 1, '\0');
  const ssize_t count = ::read(file.get(), text.data(), text.size());
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

constexpr const char* kLibrary = "libmunge.so.2";

// Of munge's own header, which need not be there.
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

/// Opened once, and never closed.
const Munge& munge_library() {
  static const Munge munge = open_library();
  return munge;
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

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
  static const bool is_ready = ::OPENSSL_init_crypto(kSkippedInit, nullptr) == 1;
  std::array<unsigned char, EVP_MAX_MD_SIZE> mac{};
  unsigned int length = 0;
  if (!is_ready || ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
                          reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                          mac.data(), &length) == nullptr) {
    fail(ErrorKind::comm, "OpenSSL gives no HMAC-SHA-256, by which ranks know each other");
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
  if (is_given && (secret.size() < kLeastTokenBytes || secret.size() > kMostTokenBytes)) {
    fail(ErrorKind::usage,
         "{}: found a secret of {} bytes; give {} to {}, e.g. of openssl rand -hex 32", name,
         secret.size(), kLeastTokenBytes, kMostTokenBytes);
  }
  return secret;
}

std::optional<std::string> seal_for_own_user(std::string_view text, std::string& reason) {
  const Munge& munge = munge_library();
  reason = munge.problem;
  if (!reason.empty()) return std::nullopt;
  const std::unique_ptr<MungeContext, void (*)(Context)> context(munge.create(), munge.destroy);
  if (!context) {
    reason = "munge has no memory";
    return std::nullopt;
  }
  // Its daemon's own default may be no cipher at all.
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

std::string new_sealable_secret() {
  std::string secret = new_challenge();
  std::string reason;
  return seal_for_own_user(secret, reason) ? secret : std::string();
}

std::optional<std::string> open_from_own_user(const std::string& credential, std::string& reason) {
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
    reason = "it is of user " + std::to_string(user) + ", not " + std::to_string(::geteuid());
  } else if (text == nullptr || length <= 0) {
    reason = "it is empty";
  } else {
    return std::string(static_cast<const char*>(text), static_cast<std::size_t>(length));
  }
  return std::nullopt;
}

}  // namespace dtrain::net
