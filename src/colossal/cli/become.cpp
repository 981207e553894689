#include "colossal/cli/become.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "colossal/base/error.h"

namespace colossal::cli {

void become_torch(const std::string& command, const Arguments& arguments) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  const fs::path beside = folder / "colossal-torch", installed = folder.parent_path() / "libexec" / "colossal" / "colossal-torch";
  const std::string program = fs::exists(beside) ? beside : installed;
  std::vector<std::string> words{"colossal", command};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  std::fflush(nullptr);  // what is buffered here would be lost
  execv(program.c_str(), pointers.data());
  throw Error("program", concat("cannot start ", program, ": ", std::strerror(errno), "; build or install the program anew: `colossal` needs it beside itself"));
}

}  // namespace colossal::cli
