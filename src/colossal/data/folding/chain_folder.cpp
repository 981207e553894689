#include "colossal/data/folding/chain_folder.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/file_name.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/base/seed.h"
#include "colossal/data/folding/chain_index.h"
#include "colossal/data/folding/template_files.h"
#include "colossal/data/visible_files.h"
#include "colossal/protein/structure_reader.h"

namespace colossal::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNamedInNotices = 5;

std::string without_gz(const std::string& path) {
  return has_ending(path, ".gz") ? path.substr(0, path.size() - 3) : path;
}

/// Returns a path without the endings of its file.
std::string stem_of_file(const std::string& path) { return fs::path(without_gz(path)).replace_extension().string(); }

/// The alignments and templates of one chain.
struct ChainFiles {
  std::vector<std::string> alignments, templates;
};

/// The files of a folder by what they are for.
struct ListedFiles {
  std::vector<std::string> structures;
  std::map<std::string, ChainFiles> of_chains;  // by the path of the structure without endings, `_` and the chain's id
};

/// Returns the outermost folder around a file whose name is that of a structure beside it, `_` and more; "" = none.
std::string folder_of_chain(const fs::path& file, const std::set<std::string>& structures) {
  std::string folder;
  for (const fs::path& part : file.parent_path()) {
    folder = (fs::path(folder) / part).string();
    const size_t name = folder.size() - part.string().size();
    for (size_t at = folder.find('_', name); at != std::string::npos; at = folder.find('_', at + 1))
      if (structures.contains(folder.substr(0, at))) return folder;
  }
  return "";
}

ListedFiles listed_files(const std::string& folder, std::vector<std::string>& notices) {
  LeftOut left_out;
  const FileRule is_read = [](const std::string& path) {
    return protein::is_structure_name(path) || protein::is_alignment_name(path);
  };
  std::vector<std::string> names;
  std::set<std::string> stems;
  for (const std::string& path : visible_files(folder, is_read, &left_out)) {
    names.push_back(fs::path(path).lexically_relative(folder).string());
    if (protein::is_structure_name(path)) stems.insert(stem_of_file(names.back()));
  }
  if (const auto notice = left_out.notice(folder)) notices.push_back(*notice);
  ListedFiles listed;
  for (const std::string& name : names) {
    const std::string own = folder_of_chain(name, stems);
    if (protein::is_alignment_name(name))
      listed.of_chains[own.empty() ? stem_of_file(name) : own].alignments.push_back(name);
    else if (own.empty())
      listed.structures.push_back(name);
    else
      listed.of_chains[own].templates.push_back(name);
  }
  return listed;
}

/// Returns "x, y, z" or "x, y, z, a, b and 7 more".
std::string some_of(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kNamedInNotices);
  std::string text = join(std::vector<std::string>(names.begin(), names.begin() + static_cast<ptrdiff_t>(shown)), ", ");
  return names.size() > shown ? concat(text, " and ", names.size() - shown, " more") : text;
}

/// Collects chains and what is said of them.
class ChainFindings {
 public:
  explicit ChainFindings(ChainFolder& folder) : folder_(folder) {}

  /// Adds the chains of a file.
  void add(const IndexedFile& file, std::map<std::string, ChainFiles>& of_chains) {
    const std::string stem = stem_of_file(file.name);
    if (!file.fault.empty()) return faults_.push_back(file.fault);
    const auto [other, is_new] = file_of_stem_.emplace(stem, file.name);
    if (!is_new)
      return faults_.push_back(concat(folder_.path, "/", file.name, " has the name of ", other->second,
                                      ", so both have the same alignments; rename one"));
    notices_.insert(notices_.end(), file.notices.begin(), file.notices.end());
    if (file.resolution == 0) without_resolution_.push_back(file.name);
    for (const IndexedChain& chain : file.chains) {
      KnownChain known{stem + "_" + chain.id, file.name, chain.id, chain.sequence, file.resolution, {}, {}};
      if (const auto own = of_chains.find(known.name); own != of_chains.end()) {
        known.alignments = own->second.alignments, known.templates = own->second.templates;
        of_chains.erase(own);
      }
      if (chain.placed > 0)
        folder_.chains.push_back(std::move(known));
      else
        without_backbone_.push_back(known.name);
    }
  }

  /// Ends with the rest of `of_chains`, which no chain has.
  void finish(const std::map<std::string, ChainFiles>& of_chains) {
    if (!faults_.empty() && folder_.options.on_error == OnError::Refuse)
      throw Error(
          "data",
          concat(faults_[0],
                 faults_.size() == 1 ? "" : concat(" (and ", faults_.size() - 1, " further structures have faults)"),
                 "; to train without it set data.on_error = \"skip\""));
    SkippedRecords skipped;
    for (const std::string& fault : faults_) skipped.add(fault);
    for (const std::string& notice : skipped.take_notices()) folder_.notices.push_back(notice);
    const size_t told = std::min(notices_.size(), 4 * kNamedInNotices);
    folder_.notices.insert(folder_.notices.end(), notices_.begin(), notices_.begin() + static_cast<ptrdiff_t>(told));
    if (notices_.size() > told)
      folder_.notices.push_back(concat(notices_.size() - told, " more notices of structures in ", folder_.path));
    const std::string& path = folder_.path;
    tell("chains of " + path + " without a residue that has N, CA and C, which are left out: ", without_backbone_);
    tell("structures of " + path +
             " without a resolution, which the losses of pLDDT, PAE and resolved atoms leave out: ",
         without_resolution_);
    std::vector<std::string> unused;
    for (const auto& [name, files] : of_chains) unused.push_back(name);
    tell("alignments or templates in " + path + " that belong to no chain: ", unused);
  }

 private:
  void tell(const std::string& what, const std::vector<std::string>& names) {
    if (!names.empty()) folder_.notices.push_back(what + some_of(names));
  }

  ChainFolder& folder_;
  std::map<std::string, std::string> file_of_stem_;
  std::vector<std::string> faults_, notices_, without_resolution_, without_backbone_;
};

const protein::StructureChain* chain_with_id(const protein::Structure& structure, const std::string& id) {
  const auto found = std::find_if(structure.chains.begin(), structure.chains.end(),
                                  [&](const protein::StructureChain& chain) { return chain.id == id; });
  return found == structure.chains.end() ? nullptr : &*found;
}

}  // namespace

ChainFolder ChainFolder::open(const std::string& path, const ChainFolderOptions& options) {
  require(fs::is_directory(path), "data", "data.path must be a folder of structures: got ", printable(path),
          ", which is none; give a folder with .cif or .pdb files");
  ChainFolder folder{path, options, {}, {}};
  ListedFiles listed = listed_files(path, folder.notices);
  require(!listed.structures.empty(), "data", path, " must have structures (.cif, .pdb, also with .gz): got none");
  ChainFindings findings(folder);
  for (const IndexedFile& file : indexed_files(path, listed.structures, options.index))
    findings.add(file, listed.of_chains);
  findings.finish(listed.of_chains);
  require(!folder.chains.empty(), "data", path, " must have a protein chain with known places: got none",
          folder.notices.empty() ? "" : " (" + folder.notices.back() + ")");
  return folder;
}

std::pair<std::vector<int64_t>, std::vector<int64_t>> ChainFolder::split(double held_out) const {
  std::pair<std::vector<int64_t>, std::vector<int64_t>> parts;
  const uint64_t seed = derive_seed(0, "held out");
  for (size_t i = 0; i < chains.size(); ++i) {
    const bool is_held_out = uniform_of_seed(derive_seed(seed, chains[i].sequence)) < held_out;
    (is_held_out ? parts.second : parts.first).push_back(static_cast<int64_t>(i));
  }
  return parts;
}

ChainContents ChainFolder::read(int64_t index, bool has_alignment, bool has_templates) const {
  const KnownChain& chain = chains.at(static_cast<size_t>(index));
  const std::string place = path + "/" + chain.file;
  const protein::Structure structure = protein::read_structure(place);
  const protein::StructureChain* found = chain_with_id(structure, chain.id);
  require(found != nullptr && protein::sequence_of(*found) == chain.sequence, "data", place,
          " was changed while the run reads it: chain ", chain.id, " has another sequence; start the run again");
  ChainContents contents{{.name = chain.name, .sequence = chain.sequence, .place = place}, *found, {}};
  std::vector<protein::Alignment> alignments;
  for (const std::string& name : chain.alignments) {
    if (!has_alignment) break;
    alignments.push_back(protein::read_alignment(path + "/" + name));
    protein::require_query(alignments.back(), chain.sequence, place);
  }
  if (!alignments.empty()) contents.known.alignment = protein::join_alignments(alignments);
  for (const std::string& name : chain.templates) {
    if (!has_templates) break;
    try {
      FoldingTemplate known = read_template(path + "/" + name, chain.sequence);
      aligned_template(chain.sequence, known);  // refuses what features would
      contents.known.templates.push_back(std::move(known));
    } catch (const Error& error) {
      if (options.on_error == OnError::Refuse) throw;
      contents.notices.push_back(concat("skipped: ", error.message()));
    }
  }
  sort_templates(contents.known.templates, chain.sequence);
  contents.notices.insert(contents.notices.end(), contents.known.alignment.notices.begin(),
                          contents.known.alignment.notices.end());
  return contents;
}

bool is_chain_folder(const std::string& path) {
  return has_visible_file(path, [](const std::string& file) { return protein::is_structure_name(file); });
}

}  // namespace colossal::data
