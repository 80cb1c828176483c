#include "dtrain/net/munge.h"

#include <dlfcn.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "dtrain/net/proof.h"

namespace dtrain::net {

namespace {

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
