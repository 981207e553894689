#include "colossal/data/folding/chain_index.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json_file.h"
#include "colossal/protein/structure_reader.h"

namespace colossal::data {
namespace {

using nlohmann::json;

constexpr int64_t kReader = 1;  // another number after a change of what read_structure() finds

struct StampedEntry {
  std::string stamp;
  IndexedFile file;
};

json entry_json(const StampedEntry& entry) {
  json chains = json::array();
  for (const IndexedChain& chain : entry.file.chains)
    chains.push_back({{"id", chain.id}, {"sequence", chain.sequence}, {"placed", chain.placed}});
  return {{"file", entry.file.name},     {"stamp", entry.stamp},          {"resolution", entry.file.resolution},
          {"chains", std::move(chains)}, {"notices", entry.file.notices}, {"fault", entry.file.fault}};
}

/// Errors: an exception of the JSON library if the line is damaged.
StampedEntry entry_of(const json& row) {
  StampedEntry entry{row.at("stamp"), {row.at("file"), row.at("resolution"), {}, row.at("notices"), row.at("fault")}};
  for (const json& chain : row.at("chains"))
    entry.file.chains.push_back({chain.at("id"), chain.at("sequence"), chain.at("placed")});
  return entry;
}

json index_head(const std::string& folder) {
  std::error_code failed;
  return {{"folder", std::filesystem::absolute(folder, failed).lexically_normal().string()}, {"reader", kReader}};
}

/// Returns what the index has of this folder, by name. Damaged lines count as absent.
std::map<std::string, StampedEntry> remembered(const std::string& folder, const std::string& index) {
  std::map<std::string, StampedEntry> known;
  std::ifstream lines(index, std::ios::binary);
  bool is_first = true;
  for (std::string line; std::getline(lines, line); is_first = false) {
    try {
      const json row = parse_json(line, index, "data");
      if (is_first && row != index_head(folder)) return {};
      if (is_first) continue;
      StampedEntry entry = entry_of(row);
      known[entry.file.name] = std::move(entry);
    } catch (const Error&) {
      if (is_first) return {};
    } catch (const json::exception&) {
    }
  }
  return known;
}

int64_t placed_residues(const protein::StructureChain& chain) {
  return std::count_if(chain.residues.begin(), chain.residues.end(), [](const protein::StructureResidue& residue) {
    const auto has = [&](int slot) {
      return std::any_of(residue.atoms.begin(), residue.atoms.end(),
                         [&](const auto& atom) { return atom.atom == slot; });
    };
    return residue.type != protein::kUnknownType && has(protein::kAtomN) && has(protein::kAtomCa) &&
           has(protein::kAtomC);
  });
}

IndexedFile read_entry(const std::string& folder, const std::string& name) {
  IndexedFile file{.name = name};
  try {
    const protein::Structure structure = protein::read_structure(folder + "/" + name);
    file.resolution = structure.resolution;
    file.notices = structure.notices;
    for (const protein::StructureChain& chain : structure.chains)
      file.chains.push_back({chain.id, protein::sequence_of(chain), placed_residues(chain)});
  } catch (const Error& error) {
    file.fault = error.message();
  }
  return file;
}

/// Calls work(i) for i below `count` from several threads. Rethrows the first exception after all have ended.
template <class Work>
void for_each_in_threads(size_t count, const Work& work) {
  constexpr size_t kMostThreads = 8;
  std::atomic<size_t> next = 0;
  std::exception_ptr failure;
  std::mutex mutex;
  const auto run = [&] {
    try {
      for (size_t i = next++; i < count; i = next++) work(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next = count;
    }
  };
  std::vector<std::jthread> threads;
  for (size_t i = 1; i < std::min({kMostThreads, count, size_t{std::thread::hardware_concurrency()}}); ++i)
    threads.emplace_back(run);
  run();
  threads.clear();
  if (failure) std::rethrow_exception(failure);
}

void store_index(const std::string& folder, const std::string& index, const std::vector<StampedEntry>& entries) {
  constexpr auto kReplace =
      json::error_handler_t::replace;  // ids of chains need not be UTF-8; such files are read again
  std::string lines = index_head(folder).dump() + "\n";
  for (const StampedEntry& entry : entries) lines += entry_json(entry).dump(-1, ' ', false, kReplace) + "\n";
  try {
    create_folder(std::filesystem::path(index).parent_path().string());
    write_file(index, lines);
  } catch (const Error&) {  // the next start reads the files again
  }
}

}  // namespace

std::vector<IndexedFile> indexed_files(const std::string& folder, const std::vector<std::string>& names,
                                       const std::string& index) {
  require(protein::reads_structures(), "protein", folder,
          " has structures, which this build does not read; install gemmi-dev and tao-pegtl-dev and build again");
  std::map<std::string, StampedEntry> known;
  if (!index.empty()) known = remembered(folder, index);
  std::vector<StampedEntry> entries(names.size());
  std::vector<size_t> unread;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string stamp = file_stamp(folder + "/" + names[i]);
    const auto found = known.find(names[i]);
    if (found != known.end() && !stamp.empty() && found->second.stamp == stamp)
      entries[i] = std::move(found->second);
    else
      entries[i].stamp = stamp, unread.push_back(i);
  }
  for_each_in_threads(unread.size(), [&](size_t i) {
    StampedEntry& entry = entries[unread[i]];
    entry.file = read_entry(folder, names[unread[i]]);
    if (file_stamp(folder + "/" + entry.file.name) != entry.stamp) entry.stamp.clear();  // changed while it was read
  });
  if (!index.empty() && (!unread.empty() || known.size() != names.size())) store_index(folder, index, entries);
  std::vector<IndexedFile> files;
  for (StampedEntry& entry : entries) files.push_back(std::move(entry.file));
  return files;
}

}  // namespace colossal::data
