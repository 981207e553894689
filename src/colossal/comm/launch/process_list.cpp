#include "colossal/comm/launch/process_list.h"

#include <filesystem>
#include <fstream>
#include <sstream>

namespace colossal::comm {

std::vector<ProcessEntry> list_processes() {
  std::vector<ProcessEntry> result;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry->path() / "stat");
    std::string line;
    std::getline(file, line);
    const size_t name_end = line.rfind(')');  // the name may have spaces and parentheses itself
    if (name_end == std::string::npos) continue;
    std::istringstream fields(line.substr(name_end + 1));
    ProcessEntry process;
    char state = 0;
    process.id = static_cast<pid_t>(std::stol(name));
    fields >> state >> process.parent >> process.group >> process.session;
    process.has_ended = state == 'Z' || state == 'X';
    if (fields) result.push_back(process);
  }
  return result;
}

bool was_started_with(pid_t process, const std::string& variable) {
  std::ifstream file("/proc/" + std::to_string(process) + "/environ");
  for (std::string entry; std::getline(file, entry, '\0');)
    if (entry == variable) return true;
  return false;
}

}  // namespace colossal::comm
