#include "colossal/cli/become.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "colossal/base/error.h"

namespace colossal::cli {

void become_torch(const std::string& command, const Arguments& arguments) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  require(!error, "program", "cannot find the folder of this program: /proc/self/exe: ", error.message(),
          "; mount /proc, or start colossal-torch itself");
  const fs::path beside = folder / "colossal-torch",
                 installed = folder.parent_path() / "libexec" / "colossal" / "colossal-torch";
  const std::string program = fs::exists(beside, error) ? beside : installed;
  std::vector<std::string> words{"colossal", command};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  // Threads of libgomp spin for milliseconds between two loops, unless a setting changes this before it loads. While
  // another process used the cores, a step took 25 times as long. A spin count of 1000 avoids this and costs nothing on
  // idle cores, where no spinning at all costs a quarter (docs/log.md). A setting of the user has priority.
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) setenv("GOMP_SPINCOUNT", "1000", 0);
  // A GPU has eight queues, unless a setting changes this before its first use, and streams share them. A receive that
  // waits for its sender would then block later work of other streams in the same queue. 32 is the maximum.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  std::fflush(nullptr);  // execv() would lose buffered output
  execv(program.c_str(), pointers.data());
  throw Error("program", concat("cannot start ", program, ": ", std::strerror(errno),
                                "; build or install the program again: `colossal` needs colossal-torch in its folder "
                                "or in ../libexec/colossal"));
}

}  // namespace colossal::cli
