// Opens the three standard descriptors, and makes writes fail instead of ending the program.
#pragma once

namespace dtrain::base {

/// Makes sure that descriptors 0 to 2 are open, on /dev/null where the caller closed them: else the
/// next file opened would get such a number, and messages would go into it. Writing to a pipe
/// without a reader becomes an error instead of a signal. Call first in main.
void secure_standard_streams();

/// Makes a write beyond `ulimit -f` an error that names the file instead of the end of the process.
/// Child processes inherit this, unless they get the default back.
void survive_file_size_limit();

}  // namespace dtrain::base
