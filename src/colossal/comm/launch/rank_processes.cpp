#include "colossal/comm/launch/rank_processes.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

namespace colossal::comm {
namespace {

/// Returns the processes that descend from `roots`, the roots included, if they are in the session of this process.
std::vector<ProcessEntry> tree(const std::vector<ProcessEntry>& all, const std::set<pid_t>& roots) {
  std::set<pid_t> members = roots;
  for (size_t before = 0; before != members.size();) {
    before = members.size();
    for (const ProcessEntry& entry : all)
      if (members.contains(entry.parent)) members.insert(entry.id);
  }
  std::vector<ProcessEntry> result;
  const pid_t session = getsid(0);
  for (const ProcessEntry& entry : all)
    if (members.contains(entry.id) && entry.session == session && !entry.has_ended) result.push_back(entry);
  return result;
}

}  // namespace

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

int RankProcesses::alive() const {
  return static_cast<int>(
      std::count_if(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) { return !rank.is_over; }));
}

bool RankProcesses::any_first_runs() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) { return rank.first_runs; });
}

/// Returns the process that has joined the run, its parent, and so on to the first process of the rank. Returns nothing
/// if none has joined, or if it is no descendant of that process.
std::vector<pid_t> RankProcesses::program_and_wrappers(size_t rank) const {
  const std::optional<pid_t> program = program_of_(rank);
  if (!program) return {};
  if (*program == ranks_[rank].group && ranks_[rank].first_runs) return {*program};
  std::map<pid_t, pid_t> parents;
  for (const ProcessEntry& entry : list_processes())
    if (!entry.has_ended) parents[entry.id] = entry.parent;
  std::vector<pid_t> chain;
  for (pid_t process = *program; process != getpid(); process = parents[process]) {
    if (!parents.contains(process) || process <= 1) return {};
    chain.push_back(process);
    if (process == ranks_[rank].group) break;
  }
  return chain;
}

void RankProcesses::ask(size_t rank, int signal) {
  if (ranks_[rank].is_over) return;
  // The program comes first: if a wrapper passes its own signal on, the program takes the second one for a copy.
  const std::vector<pid_t> chain = program_and_wrappers(rank);
  for (const pid_t process : chain) kill(process, signal);
  asked_.insert(chain.begin(), chain.end());
  if (!chain.empty()) return;
  const pid_t group = ranks_[rank].group;
  const std::vector<ProcessEntry> all = list_processes();
  std::set<pid_t> roots{group};
  for (const ProcessEntry& entry : all)
    if (entry.group == group) roots.insert(entry.id);
  kill(-group, signal);  // at once, before one of them acts on it
  for (const ProcessEntry& entry : tree(all, roots)) {
    if (entry.group != group) kill(entry.id, signal);  // `timeout` and shells with job control make groups of their own
    asked_.insert(entry.id);
  }
}

void RankProcesses::signal_groups(int signal) const {
  for (const RankProcess& rank : ranks_)
    if (!rank.is_over) kill(-rank.group, signal);
}

std::vector<pid_t> RankProcesses::running() const {
  const std::vector<ProcessEntry> all = list_processes();
  std::set<pid_t> roots;
  for (const RankProcess& rank : ranks_)
    if (!rank.is_over) roots.insert(rank.group);
  for (const ProcessEntry& entry : all)
    if (entry.parent == getpid() && was_started_with(entry.id, variable_)) roots.insert(entry.id);
  std::vector<pid_t> result;
  for (const ProcessEntry& entry : tree(all, roots)) result.push_back(entry.id);
  return result;
}

}  // namespace colossal::comm
