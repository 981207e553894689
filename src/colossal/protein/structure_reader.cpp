#include "colossal/protein/structure_reader.h"

#include <algorithm>
#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/base/file_name.h"
#include "colossal/protein/read_chain.h"

namespace colossal::protein {
namespace {

std::string without(const std::string& path, std::string_view ending) {
  return has_ending(path, ending) ? path.substr(0, path.size() - ending.size()) : path;
}

}  // namespace

bool is_structure_name(const std::string& path) {
  const std::string plain = without(path, ".gz");
  return has_ending(plain, ".cif") || has_ending(plain, ".pdb");
}

Structure read_structure(const std::string& path) {
  require(is_structure_name(path), "protein",
          "the file of a structure must end in .cif or .pdb, perhaps with .gz: got ", path, "; rename it");
  const std::string plain = without(path, ".gz");
  const bool is_pdb = has_ending(plain, ".pdb");
  require(reads_structures(), "protein", path,
          " is a structure, which this build does not read; install gemmi-dev and tao-pegtl-dev and build again");
  TextFile file = read_text(path, is_pdb ? "pdb" : "mmcif");
  const auto nuls = std::erase(file.bytes, '\0');
  Structure structure = is_pdb ? read_pdb(file) : read_mmcif(file);
  structure.name = std::filesystem::path(plain).stem().string();
  if (nuls > 0) structure.notices.push_back(concat(path, " has NUL bytes, which are left out: ", nuls));
  return structure;
}

}  // namespace colossal::protein
