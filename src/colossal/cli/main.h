#pragma once

namespace colossal::cli {

/// The whole program: picks the command, runs it, and turns whatever is thrown into one message on stderr.
/// Returns the exit status: 0; 1 after an error; 2 for a command line that cannot be understood.
int main(int argc, char** argv);

}  // namespace colossal::cli
