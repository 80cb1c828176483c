// The three standard descriptors as a program may rely on them.
#pragma once

namespace dtrain::base {

/// Makes sure that descriptors 0 to 2 are open, on /dev/null where the caller closed them: else the
/// next file opened would get such a number, and messages would go into it. Writing to a pipe
/// without a reader becomes an error instead of a signal. Call first in main.
void secure_standard_streams();

}  // namespace dtrain::base
