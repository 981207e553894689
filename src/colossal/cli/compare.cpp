#include <CLI/CLI.hpp>
#include <string>

#include "colossal/base/json_fields.h"
#include "colossal/base/number.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/compared_structures.h"
#include "colossal/cli/local_world.h"
#include "colossal/cli/standard_output.h"
#include "colossal/protein/structure_reader.h"

namespace colossal::cli {

nlohmann::ordered_json json_of(const protein::Comparison& found) {
  return {{"residues", found.residues},
          {"rmsd", found.rmsd},
          {"lddt_ca", found.lddt_ca},
          {"tm", found.tm},
          {"gdt_ts", found.gdt_ts}};
}

std::string text_of_comparison(const protein::Comparison& found) {
  return concat("RMSD ", fixed_text(found.rmsd, 3), " A over ", found.residues, " residues, lDDT-CA ",
                fixed_text(found.lddt_ca, 4), ", TM-score ", fixed_text(found.tm, 4), ", GDT-TS ",
                fixed_text(found.gdt_ts, 4));
}

int compare(const Arguments& arguments) {
  CLI::App app("Compares the CA atoms of a structure with those of a reference; sequences are aligned globally.",
               "colossal compare");
  std::string structure, reference;
  bool as_json = false;
  app.add_option("structure", structure, "mmCIF or PDB file, perhaps packed with gzip")->required();
  app.add_option("reference", reference, "the same of the reference, whose residues scores are relative to")
      ->required();
  app.add_flag("--json", as_json, "print a line of JSON");
  parse(app, arguments);
  const auto read = [](const std::string& path) {
    const protein::Structure found = protein::read_structure(path);
    for (const std::string& notice : found.notices) say(notice);
    return protein::ca_trace(found);
  };
  const protein::CaTrace of_structure = read(structure), of_reference = read(reference);
  const protein::Comparison found = protein::compare(of_structure, of_reference);
  put_line(as_json ? json_line(json_of(found)) : text_of_comparison(found));
  return 0;
}

}  // namespace colossal::cli
