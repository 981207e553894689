#include "colossal/data/folding/template_folder.h"

#include "colossal/base/error.h"
#include "colossal/data/folding/template_files.h"
#include "colossal/data/visible_files.h"
#include "colossal/protein/structure_reader.h"

namespace colossal::data {

FoundTemplates read_templates(const std::string& folder, std::string_view sequence) {
  const std::vector<std::string> paths = visible_files(folder, protein::is_structure_name);
  require(!paths.empty(), "template", "a folder of templates must have .cif or .pdb files: got none in ", folder,
          "; copy structures into it, or leave templates out");
  FoundTemplates found;
  for (const std::string& path : paths) {
    found.templates.push_back(read_template(path, sequence, &found.notices));
    aligned_template(sequence, found.templates.back());  // refuses strangers
  }
  sort_templates(found.templates, sequence);
  return found;
}

}  // namespace colossal::data
