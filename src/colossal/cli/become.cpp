#include "colossal/cli/become.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/comm/launch/process_settings.h"

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
  for (const auto& [name, value] : comm::process_settings(comm::process_variables()))
    setenv(name.c_str(), value.c_str(), 0);
  // LibTorch registers its operators in the heap before main(). In small pages this takes a quarter longer. The setting
  // is for commands that load a model and answer. Training gives memory back in pieces smaller than a huge page.
  if (command == "chat" || command == "generate" || command == "serve")
    setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 0);
  std::fflush(nullptr);  // execv() would lose buffered output
  execv(program.c_str(), pointers.data());
  throw Error("program", concat("cannot start ", program, ": ", std::strerror(errno),
                                "; build or install the program again: `colossal` needs colossal-torch in its folder "
                                "or in ../libexec/colossal"));
}

std::string this_program() {
  const std::string link = "/proc/self/exe";  // always works, but `ps` then calls the process "exe"
  std::error_code error;
  const std::string path = std::filesystem::read_symlink(link, error);
  return !error && std::filesystem::exists(path, error) ? path : link;
}

}  // namespace colossal::cli
