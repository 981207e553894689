// Templates in files.
//
//   const data::FoldingTemplate known = data::read_template("known/1abc.cif.gz", sequence);
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "colossal/data/folding/template_features.h"

namespace colossal::data {

/// Reads a structure and returns the chain of it that has the most residues equal to those of a query where they align
/// (protein::align_sequences). Its name is that of the path, `_` and the chain's id. `notices`, if not null, get those
/// of the structure.
/// Errors: protein::read_structure().
FoldingTemplate read_template(const std::string& path, std::string_view sequence,
                              std::vector<std::string>* notices = nullptr);

/// Sorts templates by the number of residues that equal those of a query, the most first.
void sort_templates(std::vector<FoldingTemplate>& templates, std::string_view sequence);

}  // namespace colossal::data
