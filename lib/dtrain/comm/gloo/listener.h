// The port at which gloo listens. Private to comm/gloo.
#pragma once

#include <functional>

namespace dtrain::comm {

/// Calls `open`, which opens a listening TCP socket somewhere within a library, and returns the
/// descriptor of that socket, which stays the library's; -1 if there is none.
[[nodiscard]] int listener_opened_by(const std::function<void()>& open);

/// Accepts no more connections: the system drops whatever comes. The library need not know.
void refuse_connections(int listener) noexcept;

}  // namespace dtrain::comm
