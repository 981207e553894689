// Templates in a folder of structures.
//
//   const data::FoundTemplates found = data::read_templates("known", sequence);
//   chain.templates = found.templates;
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "colossal/data/folding/template_features.h"

namespace colossal::data {

struct FoundTemplates {
  std::vector<FoldingTemplate> templates;  ///< those with the most equal residues first; of equal ones by their paths
  std::vector<std::string> notices;        ///< for the user
};

/// Reads the structures (.cif, .pdb, also packed with gzip) of a folder and the folders in it. Each gives the chain
/// that has the most residues in common with the query; other files are not read.
/// Errors ("template"): a folder without structures, and those of aligned_template(), with the path. Errors: those of
///         visible_files() and protein::read_structure().
FoundTemplates read_templates(const std::string& folder, std::string_view sequence);

}  // namespace colossal::data
