// What Grafana's own code makes of the dashboards: units, colors, reducers, transformations, overrides, mappings.
// node understood.cjs DASHBOARD.json: a JSON object for each panel.
//   unknown   ids of units, color modes and reducers that Grafana has not
//   matched   the fields that each override is about
//   fields    by the name that Grafana shows, its values 0 and 1 (in tables 1 and 0) as it shows them
"use strict";
const { readFileSync } = require("node:fs");
const Module = require("node:module");

// The package expects a browser, of which it uses these when it is loaded. What only draws is not needed.
const load = Module._load;
const drawing = /^(ol|react-use)(\/|$)/;
const nothing = new Proxy(class {}, { get: (target, key) => (key === "prototype" ? target.prototype : () => nothing) });
Module._load = (name, ...rest) => (drawing.test(name) ? nothing : load(name, ...rest));
globalThis.window = Object.assign(globalThis, { addEventListener() {} });
globalThis.localStorage = { getItem: () => null, setItem() {} };
globalThis.navigator ??= { language: "en", languages: ["en"] };
console.info = console.log = () => {};
const grafana = require("@grafana/data");

const { FieldType, fieldColorModeRegistry, fieldMatchers, fieldReducers, getFieldDisplayName, toDataFrame } = grafana;
const theme = grafana.createTheme();
const units = new Set(grafana.getValueFormats().flatMap(({ submenu }) => submenu.map(({ value }) => value)));
const transformers = new Map(Object.values(grafana.standardTransformers).map((each) => [each.id, each]));
grafana.standardTransformersRegistry.setInit(() =>
  [...transformers.values()].map(({ id, name }) => ({ id, name, transformation: transformers.get(id) })),
);

// What the data source of Prometheus answers: a frame for each series, or, for tables, one for each query.
const labelled = (legend) => legend.replace(/\{\{(\w+)\}\}/g, (_, label) => `a-${label}`);
const LABELS = ["a-policy", "another-policy"];
const Time = { name: "Time", type: FieldType.time, values: [1000, 2000] };

function asTable({ refId }, several) {
  return toDataFrame({
    refId,
    fields: [Time, { name: "policy", type: FieldType.string, values: LABELS },
      { name: several ? `Value #${refId}` : "Value", type: FieldType.number, values: [1, 0] }],
  });
}

function asSeries({ refId, legendFormat }) {
  const config = { displayNameFromDS: labelled(legendFormat) };
  return toDataFrame({ refId, fields: [Time, { name: "Value", type: FieldType.number, values: [0, 1], config }] });
}

function transformed(transformations, frames) {
  return new Promise((next, error) => grafana.transformDataFrame(transformations, frames).subscribe({ next, error }));
}

async function of(panel) {
  const { defaults, overrides } = panel.fieldConfig;
  const frames = panel.targets.map((target) =>
    target.format === "table" ? asTable(target, panel.targets.length > 1) : asSeries(target));
  const shown = await transformed(panel.transformations ?? [], frames);
  const fields = shown.flatMap((frame) => frame.fields.map((field) => ({ field, frame })));
  const matched = overrides.map(({ matcher, properties }) => {
    const matches = fieldMatchers.get(matcher.id).get(matcher.options);
    const found = fields.filter(({ field, frame }) => matches(field, frame, shown));
    for (const { field } of found) {
      for (const { id, value } of properties.filter((each) => !each.id.startsWith("custom."))) {
        field.config = { ...field.config, [id]: value };
      }
    }
    return found.map(({ field, frame }) => getFieldDisplayName(field, frame, shown));
  });
  const properties = overrides.flatMap((each) => each.properties);
  const colors = [defaults.color, ...properties.filter(({ id }) => id === "color").map(({ value }) => value)];
  const calcs = [...(panel.options.reduceOptions?.calcs ?? []), ...(panel.options.legend?.calcs ?? [])];
  const wanted = [defaults.unit, ...properties.filter(({ id }) => id === "unit").map(({ value }) => value)];
  return {
    title: panel.title,
    unknown: [
      ...wanted.filter((unit) => !units.has(unit)),
      ...colors.filter((color) => color?.mode && !fieldColorModeRegistry.getIfExists(color.mode)).map(({ mode }) => mode),
      ...calcs.filter((calc) => !fieldReducers.getIfExists(calc)),
    ],
    matched,
    fields: Object.fromEntries(fields.filter(({ field }) => field.type !== FieldType.time).map(({ field, frame }) => {
      const display = grafana.getDisplayProcessor({ field: { ...field, config: { ...defaults, ...field.config } }, theme });
      return [getFieldDisplayName(field, frame, shown), field.values.map((value) => grafana.formattedValueToString(display(value)))];
    })),
  };
}

const board = JSON.parse(readFileSync(process.argv[2], "utf8"));
const panels = board.panels.filter(({ type }) => type !== "row");
Promise.all(panels.map(of)).then((made) => process.stdout.write(JSON.stringify(made, null, 1)));
